"""Operations on claims, step by step: `service.ClaimService`."""
