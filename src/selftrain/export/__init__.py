"""A trained model as one file that runs without torch or selftrain: ONNX or torch.export.

Knows nothing of training, of reports or of benches.
"""
