"""Every choice a run can make, as YAML; the commands find it as `pkg://conf`."""
