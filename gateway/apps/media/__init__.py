"""Speech and pictures: transcriptions, translations, speech, images, and the voices of speech servers."""
