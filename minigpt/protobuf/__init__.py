"""What the readers of SentencePiece and TensorFlow files share: messages of Protocol Buffers."""
