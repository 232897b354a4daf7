//! What a request is refused with: DynamoDB's types of errors, and their sentences. Pure.

use crate::json;
use crate::value::Item;
use holdfast_base::Kind;

/// DynamoDB's types of errors, as far as they occur here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Type {
    /// The body is no JSON, or not of the request's shape.
    Serialization,
    /// The request can never succeed as it is.
    Validation,
    /// There is no such operation here.
    UnknownOperation,
    /// The condition does not hold.
    ConditionalCheckFailed,
    /// Nothing of the transaction was done, for the reasons of its items.
    TransactionCanceled,
    /// The transaction's token stands for another one.
    IdempotentParameterMismatch,
    /// There is no such table.
    ResourceNotFound,
    /// There is such a table already.
    ResourceInUse,
    /// The table has as many of these as it may have now.
    LimitExceeded,
    /// The item is written to more often than it takes.
    ThroughputExceeded,
    /// The request has no signature.
    MissingAuthenticationToken,
    /// Its signature lacks something.
    IncompleteSignature,
    /// Its signature is not right.
    InvalidSignature,
    /// Its access key is not known.
    UnrecognizedClient,
    /// Whose key it is may not do that.
    AccessDenied,
    /// The store gives nothing now: the same request may be sent again.
    ServiceUnavailable,
    /// The store failed.
    InternalServerError,
}

impl Type {
    /// As it stands in `__type`.
    pub fn name(self) -> &'static str {
        match self {
            Type::Serialization => "com.amazon.coral.service#SerializationException",
            Type::Validation => "com.amazon.coral.validate#ValidationException",
            Type::UnknownOperation => "com.amazon.coral.service#UnknownOperationException",
            Type::ConditionalCheckFailed => {
                "com.amazonaws.dynamodb.v20120810#ConditionalCheckFailedException"
            }
            Type::TransactionCanceled => {
                "com.amazonaws.dynamodb.v20120810#TransactionCanceledException"
            }
            Type::IdempotentParameterMismatch => {
                "com.amazonaws.dynamodb.v20120810#IdempotentParameterMismatchException"
            }
            Type::ResourceNotFound => "com.amazonaws.dynamodb.v20120810#ResourceNotFoundException",
            Type::ResourceInUse => "com.amazonaws.dynamodb.v20120810#ResourceInUseException",
            Type::LimitExceeded => "com.amazonaws.dynamodb.v20120810#LimitExceededException",
            Type::ThroughputExceeded => {
                "com.amazonaws.dynamodb.v20120810#ProvisionedThroughputExceededException"
            }
            Type::MissingAuthenticationToken => {
                "com.amazon.coral.service#MissingAuthenticationTokenException"
            }
            Type::IncompleteSignature => "com.amazon.coral.service#IncompleteSignatureException",
            Type::InvalidSignature => "com.amazon.coral.service#InvalidSignatureException",
            Type::UnrecognizedClient => "com.amazon.coral.service#UnrecognizedClientException",
            Type::AccessDenied => "com.amazon.coral.service#AccessDeniedException",
            Type::ServiceUnavailable => "com.amazon.coral.availability#ServiceUnavailable",
            Type::InternalServerError => "com.amazonaws.dynamodb.v20120810#InternalServerError",
        }
    }

    /// The status of the answer.
    pub fn status(self) -> u16 {
        match self {
            Type::ServiceUnavailable => 503,
            Type::InternalServerError => 500,
            _ => 400,
        }
    }
}

/// A refusal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// What a program reads.
    pub kind: Type,
    /// What a person reads.
    pub message: String,
    /// The item that a condition failed on, where it was asked for.
    pub item: Option<Item>,
    /// Why a transaction was cancelled: one for each of its items, in order.
    pub reasons: Vec<Reason>,
}

/// What an item of a transaction that was cancelled has to do with that.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reason {
    /// `None` where it has nothing to do with it.
    pub code: &'static str,
    /// What a person reads.
    pub message: Option<String>,
    /// The item that a condition failed on, where it was asked for.
    pub item: Option<Item>,
}

impl Reason {
    /// It is not because of this item.
    pub const NONE: Reason = Reason { code: "None", message: None, item: None };

    fn put(&self, out: &mut String) {
        let mut parts = vec![("Code", Part::Text(self.code))];
        parts.extend(self.item.as_ref().map(|item| ("Item", Part::Item(item))));
        parts.extend(self.message.as_ref().map(|message| ("Message", Part::Text(message))));
        put_parts(out, &parts);
    }
}

/// A part of a refusal's document, which is written as text, since an item is in it.
enum Part<'a> {
    Text(&'a str),
    Item(&'a Item),
    Reasons(&'a [Reason]),
}

fn put_parts(out: &mut String, parts: &[(&str, Part<'_>)]) {
    let put = |out: &mut String, (name, part): &(&str, Part<'_>)| {
        json::put_text(out, name);
        out.push(':');
        match part {
            Part::Text(text) => json::put_text(out, text),
            Part::Item(item) => json::put_item(out, item),
            Part::Reasons(reasons) => {
                json::put_all(out, json::LIST, *reasons, |out, reason: &Reason| reason.put(out));
            }
        }
    };
    json::put_all(out, ['{', '}'], parts, put);
}

/// What comes of an operation.
pub type Result<T> = std::result::Result<T, Fault>;

impl Fault {
    /// A refusal of a type.
    pub fn new(kind: Type, message: impl Into<String>) -> Fault {
        Fault { kind, message: message.into(), item: None, reasons: Vec::new() }
    }

    /// The request can never succeed as it is.
    pub fn validation(message: impl Into<String>) -> Fault {
        Fault::new(Type::Validation, message)
    }

    /// Nothing of a transaction was done.
    pub fn cancelled(reasons: Vec<Reason>) -> Fault {
        let codes: Vec<&str> = reasons.iter().map(|reason| reason.code).collect();
        let message = format!(
            "Transaction cancelled, please refer cancellation reasons for specific reasons [{}]",
            codes.join(", ")
        );
        Fault { reasons, ..Fault::new(Type::TransactionCanceled, message) }
    }

    /// The body is not of the request's shape.
    pub fn shape(message: impl Into<String>) -> Fault {
        Fault::new(Type::Serialization, message)
    }

    /// The document of the answer.
    pub fn to_text(&self) -> String {
        // DynamoDB writes this one large in refusals of shapes and of transactions.
        let is_large = [Type::Serialization, Type::TransactionCanceled].contains(&self.kind);
        let name = if is_large { "Message" } else { "message" };
        let mut parts = Vec::new();
        if !self.reasons.is_empty() {
            parts.push(("CancellationReasons", Part::Reasons(&self.reasons)));
        }
        parts.extend(self.item.as_ref().map(|item| ("Item", Part::Item(item))));
        parts.push((name, Part::Text(&self.message)));
        parts.push(("__type", Part::Text(self.kind.name())));
        let mut out = String::new();
        put_parts(&mut out, &parts);
        out
    }
}

/// What a store says, as a client is told it.
impl From<holdfast_base::Error> for Fault {
    fn from(error: holdfast_base::Error) -> Fault {
        let kind = match error.kind {
            Kind::NotFound => Type::ResourceNotFound,
            Kind::Denied => Type::AccessDenied,
            Kind::Retry | Kind::Fenced | Kind::Full | Kind::ReadOnly => Type::ServiceUnavailable,
            _ => Type::InternalServerError,
        };
        match kind {
            Type::ResourceNotFound => Fault::new(kind, "Requested resource not found"),
            _ => Fault::new(kind, error.message),
        }
    }
}
