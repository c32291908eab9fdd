"""The plain versions of the articles, whole wrappers to be measured against; not values of --sync."""
