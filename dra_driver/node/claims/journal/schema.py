"""The journal's tables, in SQL, and the version of the schema."""

SCHEMA_VERSION = 1

# The columns that this version reads and writes, by name: a newer version of the same SCHEMA_VERSION may have added
# others, with defaults, anywhere in a table.
CLAIM_COLUMNS = ("uid", "namespace", "name", "state", "owner", "attempt", "boot_id", "changed_at")
DEVICE_COLUMNS = ("uid", "position", "request", "pool", "device", "share_id", "admin", "gpu_uuid")
# fmt: off
MIG_COLUMNS = (
    "uid", "position", "device", "gpu_uuid", "profile", "profile_name", "start", "size", "made", "gi", "ci", "mig_uuid",
)
SHARING_COLUMNS = (
    "uid", "position", "strategy", "interval", "share", "memory", "percent", "shares", "total_memory", "max_shares",
    "daemon",
)
# fmt: on
GPU_NOTE_COLUMNS = ("gpu_uuid", "key", "value", "boot_id")


def insert(table: str, columns: tuple[str, ...], *, verb: str = "INSERT") -> str:
    """The statement that inserts one row of named parameters."""
    return f"{verb} INTO {table} ({', '.join(columns)}) VALUES ({', '.join(f':{name}' for name in columns)})"


def select(alias: str, columns: tuple[str, ...], *, prefix: str = "") -> str:
    """A list of result columns; ``prefix`` separates the columns of joined tables."""
    return ", ".join(f"{alias}.{name} AS {prefix}{name}" for name in columns)


# A device is assigned once: the partial unique index enforces it in every process. Admin access does not count, and
# each share of a shared device counts separately. The note is REBUILD, the version SCHEMA_VERSION.
SCHEMA = """
BEGIN IMMEDIATE;
CREATE TABLE claim (
  uid TEXT PRIMARY KEY,
  namespace TEXT NOT NULL,
  name TEXT NOT NULL,
  state TEXT NOT NULL CHECK (state IN ('preparing', 'prepared', 'unpreparing')),
  owner TEXT NOT NULL,
  attempt INTEGER NOT NULL,
  boot_id TEXT NOT NULL,
  changed_at REAL NOT NULL
) WITHOUT ROWID;
CREATE TABLE device (
  uid TEXT NOT NULL REFERENCES claim (uid) ON DELETE CASCADE,
  position INTEGER NOT NULL,
  request TEXT NOT NULL,
  pool TEXT NOT NULL,
  device TEXT NOT NULL,
  share_id TEXT NOT NULL,
  admin INTEGER NOT NULL CHECK (admin IN (0, 1)),
  gpu_uuid TEXT NOT NULL,
  PRIMARY KEY (uid, position)
) WITHOUT ROWID;
CREATE UNIQUE INDEX holder ON device (pool, device, share_id) WHERE admin = 0;
CREATE TABLE note (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
INSERT INTO note (key, value) VALUES ('rebuild-pending', 'yes');
PRAGMA user_version = 1;
COMMIT;
"""

# Later additions are tables of their own. The tables above and their version stay: during an update processes of both
# versions use one file, and a downgrade stays possible. The version changes when an older process must not use the
# file.
ADDED = """
BEGIN IMMEDIATE;
CREATE INDEX IF NOT EXISTS on_gpu ON device (gpu_uuid) WHERE admin = 0;
CREATE TABLE IF NOT EXISTS mig (
  uid TEXT NOT NULL,
  position INTEGER NOT NULL,
  device TEXT NOT NULL,
  gpu_uuid TEXT NOT NULL,
  profile INTEGER NOT NULL,
  profile_name TEXT NOT NULL,
  start INTEGER NOT NULL,
  size INTEGER NOT NULL,
  made INTEGER NOT NULL CHECK (made IN (0, 1)),
  gi INTEGER,
  ci INTEGER,
  mig_uuid TEXT,
  PRIMARY KEY (uid, position)
) WITHOUT ROWID;
CREATE UNIQUE INDEX IF NOT EXISTS made_once ON mig (gpu_uuid, profile, start) WHERE made = 1;
CREATE TABLE IF NOT EXISTS sharing (
  uid TEXT NOT NULL,
  position INTEGER NOT NULL,
  strategy TEXT NOT NULL,
  interval TEXT NOT NULL,
  share INTEGER NOT NULL CHECK (share IN (0, 1)),
  memory INTEGER,
  percent INTEGER,
  shares INTEGER,
  total_memory INTEGER,
  max_shares INTEGER,
  daemon TEXT,
  PRIMARY KEY (uid, position),
  FOREIGN KEY (uid, position) REFERENCES device (uid, position) ON DELETE CASCADE
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS gpu_note (
  gpu_uuid TEXT NOT NULL,
  key TEXT NOT NULL,
  value TEXT NOT NULL,
  boot_id TEXT NOT NULL,
  PRIMARY KEY (gpu_uuid, key)
) WITHOUT ROWID;
COMMIT;
"""
ADDED_NAMES = ("on_gpu", "mig", "made_once", "sharing", "gpu_note")
