-- A store that weft wrote before its rows were msgspec (commit fb41992), as SQL.
PRAGMA application_id = 2003134068;
PRAGMA user_version = 1;
BEGIN TRANSACTION;
CREATE TABLE answers(number INTEGER PRIMARY KEY, client TEXT NOT NULL, sequence INTEGER NOT NULL,
  told TEXT NOT NULL, UNIQUE(client, sequence));
INSERT INTO "answers" VALUES(1,'c',1,'{"id":"calm#1","is":"registered","level":1,"ttl_s":7.0}');
INSERT INTO "answers" VALUES(2,'c',2,'{"id":"keen#2","is":"registered","level":3,"ttl_s":0.0}');
INSERT INTO "answers" VALUES(3,'c',5,'{"asked":"ecb08d6a26a7f31f77ac57d47df87d48","ids":["middling#3"],"is":"applied","ports":[["h1",1],["leaf0",4],["leaf1",2],["spine1",2]],"revision":2}');
INSERT INTO "answers" VALUES(4,'c',6,'{"is":"done"}');
INSERT INTO "answers" VALUES(5,'c',7,'{"asked":"rollback to 1","ids":[],"is":"applied","ports":[],"revision":3}');
CREATE TABLE applications(id TEXT PRIMARY KEY, name TEXT NOT NULL, ttl_s REAL NOT NULL)
  WITHOUT ROWID;
INSERT INTO "applications" VALUES('calm#1','calm',7.0);
INSERT INTO "applications" VALUES('keen#2','keen',0.0);
CREATE TABLE connections(id TEXT PRIMARY KEY, application TEXT NOT NULL, source TEXT NOT NULL,
  destination TEXT NOT NULL) WITHOUT ROWID;
INSERT INTO "connections" VALUES('c/3','calm#1','h0','h2');
INSERT INTO "connections" VALUES('c/4','keen#2','h1','nowhere');
CREATE TABLE facts(name TEXT PRIMARY KEY, told TEXT NOT NULL) WITHOUT ROWID;
INSERT INTO "facts" VALUES('held','1');
INSERT INTO "facts" VALUES('levels','{"coordinates":"slowdowns at 10%, 25%, 50%, 75%","levels":[{"applications":["calm"],"centroid":[1.9,1.3,1.1,1.0333333333333332],"number":1,"sensitivity":1.3333333333333335},{"applications":["middling"],"centroid":[4.6,2.2,1.4,1.1333333333333333],"number":2,"sensitivity":2.333333333333333},{"applications":["keen"],"centroid":[9.1,3.7,1.9,1.2999999999999998],"number":3,"sensitivity":4.0}],"spread":0.0}');
INSERT INTO "facts" VALUES('registered','3');
INSERT INTO "facts" VALUES('revision','3');
CREATE TABLE kinds(name TEXT PRIMARY KEY, told TEXT NOT NULL, withdrawn INTEGER NOT NULL)
  WITHOUT ROWID;
INSERT INTO "kinds" VALUES('calm','{"baseline_s":100.0,"floor":0.05,"terms":[[1.0,0.1]]}',0);
INSERT INTO "kinds" VALUES('keen','{"baseline_s":null,"floor":0.05,"terms":[[1.0,0.9]]}',1);
INSERT INTO "kinds" VALUES('middling','{"baseline_s":50.0,"floor":0.05,"terms":[[1.0,0.4]]}',0);
CREATE TABLE revisions(revision INTEGER PRIMARY KEY, at_s REAL NOT NULL, cause TEXT NOT NULL,
  ports INTEGER NOT NULL);
INSERT INTO "revisions" VALUES(1,1000.5,'connections of calm#1',4);
INSERT INTO "revisions" VALUES(2,1000.5,'apply c/5',4);
INSERT INTO "revisions" VALUES(3,1000.5,'connections of middling#3',4);
CREATE TABLE target(node TEXT NOT NULL, port INTEGER NOT NULL, told TEXT NOT NULL,
  PRIMARY KEY(node, port)) WITHOUT ROWID;
INSERT INTO "target" VALUES('h0',1,'{"lane":[7,65536],"queue_of":[0,1,2,3,4,5,6,7],"weights":[10000,179960,8,8,8,8,8,10000]}');
INSERT INTO "target" VALUES('h1',1,'{"lane":[7,65536],"queue_of":[0,1,2,3,4,5,6,7],"weights":[189952,8,8,8,8,8,8,10000]}');
INSERT INTO "target" VALUES('leaf0',3,'{"lane":[7,65536],"queue_of":[0,1,2,3,4,5,6,7],"weights":[10000,179960,8,8,8,8,8,10000]}');
INSERT INTO "target" VALUES('leaf0',4,'{"lane":[7,65536],"queue_of":[0,1,2,3,4,5,6,7],"weights":[189952,8,8,8,8,8,8,10000]}');
INSERT INTO "target" VALUES('leaf1',1,'{"lane":[7,65536],"queue_of":[0,1,2,3,4,5,6,7],"weights":[10000,179960,8,8,8,8,8,10000]}');
INSERT INTO "target" VALUES('leaf1',2,'{"lane":[7,65536],"queue_of":[0,1,2,3,4,5,6,7],"weights":[189952,8,8,8,8,8,8,10000]}');
INSERT INTO "target" VALUES('spine0',2,'{"lane":[7,65536],"queue_of":[0,1,2,3,4,5,6,7],"weights":[10000,179960,8,8,8,8,8,10000]}');
INSERT INTO "target" VALUES('spine1',2,'{"lane":[7,65536],"queue_of":[0,1,2,3,4,5,6,7],"weights":[189952,8,8,8,8,8,8,10000]}');
CREATE TABLE undo(revision INTEGER NOT NULL, node TEXT NOT NULL, port INTEGER NOT NULL, told TEXT,
  PRIMARY KEY(revision, node, port)) WITHOUT ROWID;
INSERT INTO "undo" VALUES(1,'h0',1,NULL);
INSERT INTO "undo" VALUES(1,'leaf0',3,NULL);
INSERT INTO "undo" VALUES(1,'leaf1',1,NULL);
INSERT INTO "undo" VALUES(1,'spine0',2,NULL);
INSERT INTO "undo" VALUES(2,'h1',1,NULL);
INSERT INTO "undo" VALUES(2,'leaf0',4,NULL);
INSERT INTO "undo" VALUES(2,'leaf1',2,NULL);
INSERT INTO "undo" VALUES(2,'spine1',2,NULL);
INSERT INTO "undo" VALUES(3,'h1',1,'{"lane":[7,65536],"queue_of":[0,1,2,3,4,5,6,7],"weights":[10000,8,179960,8,8,8,8,10000]}');
INSERT INTO "undo" VALUES(3,'leaf0',4,'{"lane":[7,65536],"queue_of":[0,1,2,3,4,5,6,7],"weights":[10000,8,179960,8,8,8,8,10000]}');
INSERT INTO "undo" VALUES(3,'leaf1',2,'{"lane":[7,65536],"queue_of":[0,1,2,3,4,5,6,7],"weights":[10000,8,179960,8,8,8,8,10000]}');
INSERT INTO "undo" VALUES(3,'spine1',2,'{"lane":[7,65536],"queue_of":[0,1,2,3,4,5,6,7],"weights":[10000,8,179960,8,8,8,8,10000]}');
COMMIT;
