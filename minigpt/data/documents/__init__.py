"""The text of documents that other programs read and write: EPUB, HTML, Word, PDF and subtitles."""
