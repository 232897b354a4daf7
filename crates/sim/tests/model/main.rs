//! Explicit-state models: small worlds of the rules that must not be wrong, searched exhaustively,
//! breadth first. Each also breaks a rule on purpose, and must see it found: a model that finds
//! nothing shows nothing.

mod checker;
mod compaction;
mod leadership;
mod sealing;
