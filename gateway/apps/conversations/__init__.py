"""The responses that clients of `/v1/responses` have kept, to go on from them by `previous_response_id`."""
