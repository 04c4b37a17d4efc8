"""Plans for claims, without side effects: `plan` for an allocation or a journal entry, `conflicts` between claims."""
