"""The Flower app: run config, wiring of ServerApp and ClientApp, tasks and reports."""

import os

# gRPC reads it when it is imported, and would write a line for every connection to a port of ours that speaks no TLS.
# Where Flower starts the app and has imported gRPC before, whoever starts Flower sets it.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
