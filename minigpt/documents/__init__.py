"""Text of EPUB, HTML, Word, PDF and subtitle files."""
