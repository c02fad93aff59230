"""The ClientApp, as Flower finds it."""

from app.tasks.clients import client_task
from clients.client_app import make_client_app

app = make_client_app(client_task)
