"""Accuracy of the cost model on published measurements that it was not fitted to."""
