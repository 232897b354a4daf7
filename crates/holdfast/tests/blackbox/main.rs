//! The real binary from outside: started, fed, killed, started again. Every test has a data
//! directory and a node of its own and waits for events only: a line, an exit, an answer.
#![forbid(unsafe_code)]
#![allow(
    clippy::disallowed_methods,
    reason = "these tests are the user of the binary: they own files, sockets, threads and processes"
)]

mod audit;
mod bad_data;
mod bad_frames;
mod bad_input;
mod blob_cluster;
mod blob_disk;
mod brokers;
mod cache;
mod cert;
mod cluster;
mod cluster_input;
mod cluster_lost;
mod cluster_tls;
mod common;
mod deploy;
mod dynamodb;
mod ends;
mod full_disk;
mod guard;
mod health;
mod hostile;
mod hostile_readers;
mod hosts_wiped;
mod http;
mod import;
mod invalidate;
mod invalidate_mariadb_faults;
mod invalidate_postgres;
mod invalidate_postgres_data;
mod invalidate_postgres_faults;
mod invalidate_shop;
mod invalidate_status;
mod invalidate_table;
mod invalidate_tls;
mod kills;
mod limits;
mod logs;
mod mariadb;
mod memcached;
#[path = "../support/mount.rs"]
mod mount;
mod photos;
mod postgres;
mod rebuild;
mod route;
mod s3;
mod s3_walk;
mod scribe;
mod scribe_carriers;
mod scribe_hours;
mod scribe_lost;
mod scribe_stores;
mod shards;
mod shop;
mod sort;
mod stopped_views;
mod story;
mod tables;
mod tables_pairs;
mod tables_regions;
mod tables_split;
mod tails;
mod tls;
mod token;
mod told;
mod topics;
mod trees;
mod unmounted;
mod views;
mod views_alone;
mod views_bounds;
mod views_damaged;
mod views_doubted;
mod views_follow;
mod views_full;
mod views_graph;
mod views_index;
mod views_killed;
mod views_packages;
mod views_rides;
mod views_versions;
