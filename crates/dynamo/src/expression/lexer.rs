//! The tokens of an expression. Pure.

/// A token of an expression.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Token<'a> {
    /// A name, a keyword or a function.
    Word(&'a str),
    /// A name that stands for another: `#n`.
    Name(&'a str),
    /// A name that stands for a value: `:v`.
    Value(&'a str),
    /// Digits.
    Number(&'a str),
    /// Punctuation or an operator.
    Symbol(&'a str),
}

impl<'a> Token<'a> {
    fn text(self) -> &'a str {
        match self {
            Token::Word(text)
            | Token::Name(text)
            | Token::Value(text)
            | Token::Number(text)
            | Token::Symbol(text) => text,
        }
    }

    fn is_word(self, word: &str) -> bool {
        matches!(self, Token::Word(text) if text.eq_ignore_ascii_case(word))
    }
}

/// All tokens of an expression, and which is next.
pub struct Lexer<'a> {
    text: &'a str,
    /// Each with where it begins.
    tokens: Vec<(usize, Token<'a>)>,
    at: usize,
}

const SYMBOLS: [&str; 14] =
    ["<>", "<=", ">=", "<", ">", "=", "(", ")", ",", ".", "[", "]", "+", "-"];
const OPERATORS: [&str; 6] = ["and", "or", "not", "between", "in", "="];

impl<'a> Lexer<'a> {
    /// Splits the whole text; tells what is no token.
    pub fn new(text: &'a str) -> Result<Lexer<'a>, String> {
        let is_part = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
        let bytes = text.as_bytes();
        let mut tokens = Vec::new();
        let mut at = 0;
        while let Some(first) = bytes.get(at) {
            if matches!(first, b' ' | b'\t' | b'\r' | b'\n') {
                at += 1;
                continue;
            }
            let parts = |from: usize| bytes[from..].iter().take_while(|b| is_part(**b)).count();
            let (len, make): (usize, fn(&'a str) -> Token<'a>) = match first {
                b'#' if parts(at + 1) > 0 => (1 + parts(at + 1), Token::Name),
                b':' if parts(at + 1) > 0 => (1 + parts(at + 1), Token::Value),
                b'0'..=b'9' => {
                    (bytes[at..].iter().take_while(|b| b.is_ascii_digit()).count(), Token::Number)
                }
                first if is_part(*first) => (parts(at), Token::Word),
                _ => match SYMBOLS.iter().find(|symbol| text[at..].starts_with(**symbol)) {
                    Some(symbol) => (symbol.len(), Token::Symbol),
                    None => {
                        let wrong = text[at..].chars().next().unwrap_or_default();
                        let from = tokens.last().map_or(0, |(from, _): &(usize, _)| *from);
                        let near = &text[from..at + wrong.len_utf8()];
                        return Err(format!("Syntax error; token: \"{wrong}\", near: \"{near}\""));
                    }
                },
            };
            tokens.push((at, make(&text[at..at + len])));
            at += len;
        }
        Ok(Lexer { text, tokens, at: 0 })
    }

    /// Operators and functions in all of it.
    pub fn operators(&self) -> usize {
        let is_operator = |at: usize| match self.tokens[at].1 {
            Token::Word(word) => {
                OPERATORS.iter().any(|operator| word.eq_ignore_ascii_case(operator))
                    || self.tokens.get(at + 1).is_some_and(|(_, next)| *next == Token::Symbol("("))
            }
            Token::Symbol(symbol) => ["<>", "<=", ">=", "<", ">", "=", "+", "-"].contains(&symbol),
            _ => false,
        };
        (0..self.tokens.len()).filter(|at| is_operator(*at)).count()
    }

    /// The next token, which stays.
    pub fn peek(&self) -> Option<Token<'a>> {
        self.tokens.get(self.at).map(|(_, token)| *token)
    }

    /// The one behind the next.
    pub fn peek_second(&self) -> Option<Token<'a>> {
        self.tokens.get(self.at + 1).map(|(_, token)| *token)
    }

    /// Takes the next token.
    pub fn next(&mut self) -> Option<Token<'a>> {
        let token = self.peek();
        self.at += 1;
        token
    }

    /// Takes the symbol if it is next.
    pub fn take_symbol(&mut self, symbol: &str) -> bool {
        let is_next = matches!(self.peek(), Some(Token::Symbol(next)) if next == symbol);
        self.at += usize::from(is_next);
        is_next
    }

    /// Takes the keyword if it is next, in whatever case.
    pub fn take_word(&mut self, word: &str) -> bool {
        let is_next = self.is_word(word);
        self.at += usize::from(is_next);
        is_next
    }

    /// Whether the keyword is next.
    pub fn is_word(&self, word: &str) -> bool {
        self.peek().is_some_and(|token| token.is_word(word))
    }

    /// Whether all is read.
    pub fn is_at_end(&self) -> bool {
        self.at >= self.tokens.len()
    }

    /// What is said when the next token does not fit.
    pub fn syntax_error(&self) -> String {
        let end = |at: usize| self.tokens.get(at).map(|(from, token)| from + token.text().len());
        let from = self.tokens.get(self.at.saturating_sub(1)).map_or(0, |(from, _)| *from);
        let to = end(self.at + 1).or(end(self.at)).unwrap_or(self.text.len());
        let token = self.peek().map_or("<EOF>", Token::text);
        format!("Syntax error; token: \"{token}\", near: \"{}\"", &self.text[from..to])
    }

    /// The same of the token that was taken last.
    pub fn syntax_error_before(&mut self) -> String {
        self.at = self.at.saturating_sub(1);
        self.syntax_error()
    }
}
