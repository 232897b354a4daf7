//! The carousel's core in a driver that carries out effects in any order, held against a plain
//! model of what each rider must get.

mod explicit;
mod laps;
mod rides;
mod stories;
mod view;
mod world;
mod wrong;
