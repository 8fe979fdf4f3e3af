"""PostgreSQL through asyncpg: three connections of its own, prepared statements, no ORM."""
