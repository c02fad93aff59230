"""The ClientApp, as Flower finds it."""

from espalier.app.ground.imports import uncollected

with uncollected():
    from espalier.app.wiring.clients import client_task
    from espalier.clients.client_app import make_client_app
    from espalier.clients.seconds import tell_seconds

app = make_client_app(client_task, mods=[tell_seconds])
