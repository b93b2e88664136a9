"""Reading of Ascend profiler output: files to `Profile` tables, all quirks of the formats handled here."""
