"""Settings of runs on folders of small images, short enough for tests of what is recorded of runs."""

TINY = """
algorithm = "sfl-v2"
dataset = "image-folder"
data.image-size = 8
model = "small-cnn"
num-clients = 2
partition = "iid"
global-rounds = 2
batches-per-epoch = 1
batch-size = 4
"""
