"""Several gateways in front of one fleet, over Redis (`server.shared`). Imported only where that is set."""
