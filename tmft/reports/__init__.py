"""Tables, figures and pages from the scores of finished runs and of models."""
