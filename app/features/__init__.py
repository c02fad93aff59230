"""The features: a folder each, of which the others know what `espalier.app.features.feature.Feature` says."""
