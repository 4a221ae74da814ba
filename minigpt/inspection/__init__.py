"""What a model computes, as arrays and pictures: attention maps, logit lens, norms, surprisal."""
