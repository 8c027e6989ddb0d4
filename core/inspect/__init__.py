"""What Inspect shows: facts about weights and activations, computed here and drawn in `app.pages.inspect`."""
