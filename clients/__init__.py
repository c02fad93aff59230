"""What runs on a device: the message vocabulary and the handlers behind each message type."""
