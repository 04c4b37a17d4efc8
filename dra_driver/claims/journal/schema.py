"""The journal's tables, in SQL.

Owns the schema and its version. Refuses to know when it is applied (`journal_file`) and what rows mean (`journal_rows`,
`journal_details`).
"""

SCHEMA_VERSION = 1

# A device may be held once: the partial unique index makes that true whatever any process does. A device given with
# admin access is nobody's, and one share of a device that is shared is a holding of its own. The note is REBUILD, the
# version SCHEMA_VERSION.
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
INSERT INTO note VALUES ('rebuild-pending', 'yes');
PRAGMA user_version = 1;
COMMIT;
"""

# What came later is in tables of its own and leaves those above, and their version, as they are: while a node is
# updated a process of before and one of after work in one file, and going back to the version of before stays possible.
# The version is for a change with which an older process must not work.
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
