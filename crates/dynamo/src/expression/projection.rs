//! Projections: which parts of an item are wanted. Pure.

use super::path::{Path, clashes};
use super::{Parser, Placeholders, Wrong};
use crate::fault::Result;

const ORDER: [Wrong; 5] =
    [Wrong::Reserved, Wrong::Name, Wrong::Value, Wrong::Overlap, Wrong::Conflict];

/// Reads a `ProjectionExpression`.
pub fn parse(text: &str, placeholders: &mut Placeholders) -> Result<Vec<Path>> {
    Parser::read("ProjectionExpression", text, placeholders, &ORDER, |parser| {
        let mut paths = vec![parser.path()?];
        while parser.lexer.take_symbol(",") {
            paths.push(parser.path()?);
        }
        parser.note_clashes(&paths);
        Ok(paths)
    })
}

impl Parser<'_> {
    /// Notes paths that are in each other's way. Those of names that stand for nothing are not
    /// looked at: that is told first.
    pub(super) fn note_clashes(&mut self, paths: &[Path]) {
        let (overlap, conflict) = clashes(paths);
        for (wrong, told) in [(Wrong::Overlap, overlap), (Wrong::Conflict, conflict)] {
            if let Some(told) = told {
                self.note(wrong, || told);
            }
        }
    }
}
