-- A store that weft of commit 56eaeee wrote, whose totals triggers of the file count, as SQL.
PRAGMA application_id = 2003134068;
PRAGMA user_version = 4;
BEGIN TRANSACTION;
CREATE TABLE answers(number INTEGER PRIMARY KEY, client TEXT NOT NULL, sequence INTEGER NOT NULL,
  told TEXT NOT NULL, owner TEXT, checksum INTEGER NOT NULL, UNIQUE(client, sequence));
INSERT INTO "answers" VALUES(1,'c',1,'{"id":"calm#1","is":"registered","level":1,"ttl_s":7.0}',NULL,1707823424);
INSERT INTO "answers" VALUES(2,'c',2,'{"id":"keen#2","is":"registered","level":3,"ttl_s":0.0}',NULL,4172640945);
INSERT INTO "answers" VALUES(3,'c',5,'{"asked":"ecb08d6a26a7f31f77ac57d47df87d48","ids":["middling#3"],"is":"applied","ports":[["h1",1],["leaf0",4],["leaf1",2],["spine1",2]],"revision":2}',NULL,3974607065);
INSERT INTO "answers" VALUES(4,'c',6,'{"is":"done"}',NULL,1793734776);
INSERT INTO "answers" VALUES(5,'c',7,'{"asked":"rollback to 1","ids":[],"is":"applied","ports":[],"revision":3}',NULL,1892686482);
CREATE TABLE applications(id TEXT PRIMARY KEY, name TEXT NOT NULL, ttl_s REAL NOT NULL,
  owner TEXT, job TEXT, unit TEXT, checksum INTEGER NOT NULL) WITHOUT ROWID;
INSERT INTO "applications" VALUES('calm#1','calm',7.0,NULL,NULL,NULL,1813757803);
INSERT INTO "applications" VALUES('keen#2','keen',0.0,NULL,NULL,NULL,3459081254);
CREATE TABLE connections(id TEXT PRIMARY KEY, application TEXT NOT NULL, source TEXT NOT NULL,
  destination TEXT NOT NULL, checksum INTEGER NOT NULL) WITHOUT ROWID;
INSERT INTO "connections" VALUES('c/3','calm#1','h0','h2',3765626837);
INSERT INTO "connections" VALUES('c/4','keen#2','h1','nowhere',2549090590);
CREATE TABLE facts(name TEXT PRIMARY KEY, told TEXT NOT NULL, checksum INTEGER NOT NULL)
  WITHOUT ROWID;
INSERT INTO "facts" VALUES('held','1',3606726727);
INSERT INTO "facts" VALUES('levels','{"coordinates":"slowdowns at 10%, 25%, 50%, 75%","levels":[{"applications":["calm"],"centroid":[1.9,1.3,1.1,1.0333333333333332],"number":1,"sensitivity":1.3333333333333335},{"applications":["middling"],"centroid":[4.6,2.2,1.4,1.1333333333333333],"number":2,"sensitivity":2.333333333333333},{"applications":["keen"],"centroid":[9.1,3.7,1.9,1.2999999999999998],"number":3,"sensitivity":4.0}],"spread":0.0}',1135451035);
INSERT INTO "facts" VALUES('registered','3',2087693497);
INSERT INTO "facts" VALUES('revision','3',276956700);
CREATE TABLE kinds(name TEXT PRIMARY KEY, told TEXT NOT NULL, withdrawn INTEGER NOT NULL,
  checksum INTEGER NOT NULL) WITHOUT ROWID;
INSERT INTO "kinds" VALUES('calm','{"baseline_s":100.0,"floor":0.05,"terms":[[1.0,0.1]]}',0,3218483423);
INSERT INTO "kinds" VALUES('keen','{"baseline_s":null,"floor":0.05,"terms":[[1.0,0.9]]}',1,877950808);
INSERT INTO "kinds" VALUES('middling','{"baseline_s":50.0,"floor":0.05,"terms":[[1.0,0.4]]}',0,3743686045);
CREATE TABLE revisions(revision INTEGER PRIMARY KEY, at_s REAL NOT NULL, cause TEXT NOT NULL,
  ports INTEGER NOT NULL, checksum INTEGER NOT NULL);
INSERT INTO "revisions" VALUES(1,1000.5,'connections of calm#1',4,421356220);
INSERT INTO "revisions" VALUES(2,1000.5,'apply c/5',4,1472007278);
INSERT INTO "revisions" VALUES(3,1000.5,'connections of middling#3',4,3559965713);
CREATE TABLE target(node TEXT NOT NULL, port INTEGER NOT NULL, told TEXT NOT NULL,
  checksum INTEGER NOT NULL, PRIMARY KEY(node, port)) WITHOUT ROWID;
INSERT INTO "target" VALUES('h0',1,'{"lane":[7,65536],"queue_of":[0,1,2,3,4,5,6,7],"weights":[10000,179960,8,8,8,8,8,10000]}',2321355228);
INSERT INTO "target" VALUES('h1',1,'{"lane":[7,65536],"queue_of":[0,1,2,3,4,5,6,7],"weights":[189952,8,8,8,8,8,8,10000]}',679789377);
INSERT INTO "target" VALUES('leaf0',3,'{"lane":[7,65536],"queue_of":[0,1,2,3,4,5,6,7],"weights":[10000,179960,8,8,8,8,8,10000]}',4144675596);
INSERT INTO "target" VALUES('leaf0',4,'{"lane":[7,65536],"queue_of":[0,1,2,3,4,5,6,7],"weights":[189952,8,8,8,8,8,8,10000]}',78848411);
INSERT INTO "target" VALUES('leaf1',1,'{"lane":[7,65536],"queue_of":[0,1,2,3,4,5,6,7],"weights":[10000,179960,8,8,8,8,8,10000]}',3167963464);
INSERT INTO "target" VALUES('leaf1',2,'{"lane":[7,65536],"queue_of":[0,1,2,3,4,5,6,7],"weights":[189952,8,8,8,8,8,8,10000]}',161147960);
INSERT INTO "target" VALUES('spine0',2,'{"lane":[7,65536],"queue_of":[0,1,2,3,4,5,6,7],"weights":[10000,179960,8,8,8,8,8,10000]}',3011345442);
INSERT INTO "target" VALUES('spine1',2,'{"lane":[7,65536],"queue_of":[0,1,2,3,4,5,6,7],"weights":[189952,8,8,8,8,8,8,10000]}',3005231595);
CREATE TABLE totals /* schema 4 */ (name TEXT PRIMARY KEY, rows INTEGER NOT NULL, checksums INTEGER NOT NULL) WITHOUT ROWID;
INSERT INTO "totals" VALUES('answers',5,13541492692);
INSERT INTO "totals" VALUES('applications',2,5272839057);
INSERT INTO "totals" VALUES('connections',2,6314717427);
INSERT INTO "totals" VALUES('facts',4,7106827959);
INSERT INTO "totals" VALUES('kinds',3,7840120276);
INSERT INTO "totals" VALUES('revisions',3,5453329211);
INSERT INTO "totals" VALUES('target',8,16570357073);
INSERT INTO "totals" VALUES('undo',12,29764203034);
CREATE TABLE undo(revision INTEGER NOT NULL, node TEXT NOT NULL, port INTEGER NOT NULL, told TEXT,
  checksum INTEGER NOT NULL, PRIMARY KEY(revision, node, port)) WITHOUT ROWID;
INSERT INTO "undo" VALUES(1,'h0',1,NULL,534141839);
INSERT INTO "undo" VALUES(1,'leaf0',3,NULL,3826157559);
INSERT INTO "undo" VALUES(1,'leaf1',1,NULL,3623522114);
INSERT INTO "undo" VALUES(1,'spine0',2,NULL,1018834967);
INSERT INTO "undo" VALUES(2,'h1',1,NULL,2558542614);
INSERT INTO "undo" VALUES(2,'leaf0',4,NULL,2462199285);
INSERT INTO "undo" VALUES(2,'leaf1',2,NULL,3311067204);
INSERT INTO "undo" VALUES(2,'spine1',2,NULL,3595559203);
INSERT INTO "undo" VALUES(3,'h1',1,'{"lane":[7,65536],"queue_of":[0,1,2,3,4,5,6,7],"weights":[10000,8,179960,8,8,8,8,10000]}',3148470020);
INSERT INTO "undo" VALUES(3,'leaf0',4,'{"lane":[7,65536],"queue_of":[0,1,2,3,4,5,6,7],"weights":[10000,8,179960,8,8,8,8,10000]}',260360937);
INSERT INTO "undo" VALUES(3,'leaf1',2,'{"lane":[7,65536],"queue_of":[0,1,2,3,4,5,6,7],"weights":[10000,8,179960,8,8,8,8,10000]}',4091189831);
INSERT INTO "undo" VALUES(3,'spine1',2,'{"lane":[7,65536],"queue_of":[0,1,2,3,4,5,6,7],"weights":[10000,8,179960,8,8,8,8,10000]}',1334157461);
CREATE TRIGGER applications_more AFTER INSERT ON applications BEGIN UPDATE totals SET rows = rows + 1, checksums = checksums + new.checksum WHERE name = 'applications'; END;
CREATE TRIGGER applications_less AFTER DELETE ON applications BEGIN UPDATE totals SET rows = rows - 1, checksums = checksums - old.checksum WHERE name = 'applications'; END;
CREATE TRIGGER connections_more AFTER INSERT ON connections BEGIN UPDATE totals SET rows = rows + 1, checksums = checksums + new.checksum WHERE name = 'connections'; END;
CREATE TRIGGER connections_less AFTER DELETE ON connections BEGIN UPDATE totals SET rows = rows - 1, checksums = checksums - old.checksum WHERE name = 'connections'; END;
CREATE TRIGGER kinds_more AFTER INSERT ON kinds BEGIN UPDATE totals SET rows = rows + 1, checksums = checksums + new.checksum WHERE name = 'kinds'; END;
CREATE TRIGGER kinds_less AFTER DELETE ON kinds BEGIN UPDATE totals SET rows = rows - 1, checksums = checksums - old.checksum WHERE name = 'kinds'; END;
CREATE TRIGGER answers_more AFTER INSERT ON answers BEGIN UPDATE totals SET rows = rows + 1, checksums = checksums + new.checksum WHERE name = 'answers'; END;
CREATE TRIGGER answers_less AFTER DELETE ON answers BEGIN UPDATE totals SET rows = rows - 1, checksums = checksums - old.checksum WHERE name = 'answers'; END;
CREATE TRIGGER revisions_more AFTER INSERT ON revisions BEGIN UPDATE totals SET rows = rows + 1, checksums = checksums + new.checksum WHERE name = 'revisions'; END;
CREATE TRIGGER revisions_less AFTER DELETE ON revisions BEGIN UPDATE totals SET rows = rows - 1, checksums = checksums - old.checksum WHERE name = 'revisions'; END;
CREATE TRIGGER target_more AFTER INSERT ON target BEGIN UPDATE totals SET rows = rows + 1, checksums = checksums + new.checksum WHERE name = 'target'; END;
CREATE TRIGGER target_less AFTER DELETE ON target BEGIN UPDATE totals SET rows = rows - 1, checksums = checksums - old.checksum WHERE name = 'target'; END;
CREATE TRIGGER undo_more AFTER INSERT ON undo BEGIN UPDATE totals SET rows = rows + 1, checksums = checksums + new.checksum WHERE name = 'undo'; END;
CREATE TRIGGER undo_less AFTER DELETE ON undo BEGIN UPDATE totals SET rows = rows - 1, checksums = checksums - old.checksum WHERE name = 'undo'; END;
CREATE TRIGGER facts_more AFTER INSERT ON facts BEGIN UPDATE totals SET rows = rows + 1, checksums = checksums + new.checksum WHERE name = 'facts'; END;
CREATE TRIGGER facts_less AFTER DELETE ON facts BEGIN UPDATE totals SET rows = rows - 1, checksums = checksums - old.checksum WHERE name = 'facts'; END;
COMMIT;
