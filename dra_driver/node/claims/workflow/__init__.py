"""What happens to a claim, step by step. `service.ClaimService` has the operations."""
