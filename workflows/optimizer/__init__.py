"""What is tried next: proposals and the models behind them."""
