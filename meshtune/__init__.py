"""Finds the parallel training configuration of an LLM that trains fastest on a cluster."""

from meshtune.own_packages import install

install()
