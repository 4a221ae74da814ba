"""Training by several processes: launch, rendezvous, collective operations, sharding."""
