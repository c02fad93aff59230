"""The trackers that come with the app, a file each; `espalier.app.settings.tracker_kinds` has the table of them."""
