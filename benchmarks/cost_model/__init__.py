"""How well the cost model predicts published measurements that it was not fitted to."""
