//! Requests to a table with global indexes, as a seed decides.

use super::requests::{Requests, TABLES};
use serde_json::{Value as Json, json};

/// The table with global indexes: what CreateTable is asked for. Its items have the keys of the second table's.
pub fn global_table() -> Json {
    let attribute = |name: &str, kind: &str| json!({"AttributeName": name, "AttributeType": kind});
    let schema = |keys: &[&str]| -> Json {
        let roles = keys.iter().zip(["HASH", "RANGE"]);
        roles.map(|(name, role)| json!({"AttributeName": name, "KeyType": role})).collect()
    };
    let index = |name: &str, keys: &[&str], projection: Json| json!({"IndexName": name, "KeySchema": schema(keys), "Projection": projection});
    json!({
        "TableName": "global", "BillingMode": "PAY_PER_REQUEST", "KeySchema": schema(&["p", "s"]),
        "AttributeDefinitions": [
            attribute("p", "S"), attribute("s", "N"), attribute("a", "S"), attribute("n1", "N")
        ],
        "GlobalSecondaryIndexes": [
            index("all", &["a"], json!({"ProjectionType": "ALL"})),
            index("keys", &["n1", "a"], json!({"ProjectionType": "KEYS_ONLY"})),
            index("some", &["a", "n1"], json!({"ProjectionType": "INCLUDE", "NonKeyAttributes": ["b"]}))
        ]
    })
}

impl Requests {
    /// A request to that table: writes that its indexes take and some that they do not, and looks at indexes.
    pub fn global(&mut self) -> (&'static str, Json) {
        let key = self.key(TABLES[1]);
        let mut body = json!({"TableName": "global"});
        match self.below(8) {
            kind @ 0..5 => self.indexed_write(body, key, (kind, 4)),
            5 => {
                body["IndexName"] = json!(self.of(&["all", "keys", "some", "none"]));
                self.look(&mut body);
                ("Scan", body)
            }
            _ => {
                self.global_query(&mut body);
                ("Query", body)
            }
        }
    }

    fn global_query(&mut self, body: &mut Json) {
        let index = self.of(&["all", "keys", "some"]);
        let (hash, range) = match index {
            "all" => (("a", "S"), None),
            "keys" => (("n1", "N"), Some(("a", "S"))),
            _ => (("a", "S"), Some(("n1", "N"))),
        };
        let mut condition = format!("{} = :h", hash.0);
        let mut values = json!({":h": self.scalar(hash.1)});
        if let Some((name, kind)) = range.filter(|_| self.below(3) > 0) {
            condition += &match self.below(4) {
                0 => format!(" AND {name} BETWEEN :v AND :v"),
                _ => format!(" AND {name} {} :v", self.of(&["=", "<", "<=", ">", ">="])),
            };
            values[":v"] = self.scalar(kind);
        }
        if self.one_in(12) {
            values[":h"] = self.value(0);
        }
        body["IndexName"] = json!(index);
        body["KeyConditionExpression"] = json!(condition);
        body["ExpressionAttributeValues"] = values;
        body["ScanIndexForward"] = json!(self.one_in(2));
        self.look(body);
    }

    fn look(&mut self, body: &mut Json) {
        match self.below(10) {
            0 => body["ConsistentRead"] = json!(true),
            1 => body["Select"] = json!("ALL_ATTRIBUTES"),
            2 => body["Select"] = json!(self.of(&["COUNT", "ALL_PROJECTED_ATTRIBUTES"])),
            3 => body["Limit"] = json!(1 + self.below(3)),
            4 => body["ProjectionExpression"] = json!(self.of(&["p", "a, n1", "s, a"])),
            _ => {}
        }
    }
}
