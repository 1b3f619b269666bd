"""The contracts and the machinery behind them: posteriors, sites, the root module, conversion."""
