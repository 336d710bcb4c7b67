"""English text to speech with hibari, a small network that comes ready-made in the package `hibari-tts`."""
