"""The special ids, the same in the tokenizer, the batches, the model and the
search."""

PAD, UNKNOWN, START, END = range(4)
