"""Ray Serve: computes the signatures of exports in replicas."""
