"""Pre-training on plain text: masked language modelling, replaced-token detection, span corruption."""
