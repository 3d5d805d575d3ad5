"""From URLs to minibatches: source, tar, labels, layouts, decode, preprocess, samples, blocks, minibatch."""
