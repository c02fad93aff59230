"""The Flower app: run config, wiring of ServerApp and ClientApp, tasks and reports."""
