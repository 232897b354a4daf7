//! Requests, right ones and wrong ones, as a seed decides.

use holdfast_base::random::Random;
use serde_json::{Map, Value as Json, json};

/// The tables that requests are for: name, type of the partition key, type of the sort key.
pub const TABLES: [(&str, &str, Option<&str>); 3] =
    [("one", "S", None), ("two", "S", Some("N")), ("three", "N", Some("B"))];

/// What CreateTable is asked for one of them.
pub fn creation((name, partition, sort): (&str, &str, Option<&str>)) -> Json {
    let mut schema = vec![json!({"AttributeName": "p", "KeyType": "HASH"})];
    let mut kinds = vec![json!({"AttributeName": "p", "AttributeType": partition})];
    if let Some(sort) = sort {
        schema.push(json!({"AttributeName": "s", "KeyType": "RANGE"}));
        kinds.push(json!({"AttributeName": "s", "AttributeType": sort}));
    }
    json!({
        "TableName": name, "KeySchema": schema, "AttributeDefinitions": kinds,
        "BillingMode": "PAY_PER_REQUEST"
    })
}

const NAMES: [&str; 7] = ["a", "b", "c", "d", "l1", "m1", "n1"];
const NUMBERS: [&str; 12] =
    ["0", "1", "-1", "2", "10", "0.5", "-2.50", "1e3", "100", "12345678901234567890", "1e-5", "7"];

pub struct Requests {
    pub random: Random,
}

/// What an expression refers to.
#[derive(Default)]
struct Given {
    names: Map<String, Json>,
    values: Map<String, Json>,
}

impl Given {
    fn value(&mut self, value: Json) -> String {
        let name = format!(":v{}", self.values.len());
        self.values.insert(name.clone(), value);
        name
    }

    fn into(self, body: &mut Json) {
        if !self.names.is_empty() {
            body["ExpressionAttributeNames"] = Json::Object(self.names);
        }
        if !self.values.is_empty() {
            body["ExpressionAttributeValues"] = Json::Object(self.values);
        }
    }
}

impl Requests {
    pub fn below(&mut self, n: usize) -> usize {
        self.random.below(n as u64) as usize
    }

    pub fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    pub fn of<'a, T: ?Sized>(&mut self, list: &[&'a T]) -> &'a T {
        list[self.below(list.len())]
    }

    pub fn scalar(&mut self, kind: &str) -> Json {
        match kind {
            "S" => json!({"S": self.of(&["a", "ab", "b", "hello", "é", "x y"])}),
            "N" => json!({"N": self.of(&NUMBERS)}),
            "B" => json!({"B": self.of(&["AA==", "AAE=", "/w==", "YWI=", "AP8B"])}),
            "BOOL" => json!({"BOOL": self.one_in(2)}),
            _ => json!({"NULL": true}),
        }
    }

    pub fn value(&mut self, depth: usize) -> Json {
        match self.below(if depth == 0 { 9 } else { 13 }) {
            0 | 1 => self.scalar("S"),
            2..=4 => self.scalar("N"),
            5 => self.scalar("B"),
            6 => {
                let kind = self.of(&["BOOL", "NULL"]);
                self.scalar(kind)
            }
            7 => json!({"SS": self.of(&[&["a"][..], &["a", "b"], &["b", "hello"]])}),
            8 => json!({"NS": self.of(&[&["1"][..], &["1", "2"], &["10", "-1", "0.5"]])}),
            9 | 10 => {
                let count = self.below(4);
                json!({"L": (0..count).map(|_| self.value(depth - 1)).collect::<Vec<_>>()})
            }
            _ => json!({"M": self.attributes(3, depth - 1)}),
        }
    }

    fn attributes(&mut self, most: usize, depth: usize) -> Map<String, Json> {
        let count = self.below(most + 1);
        (0..count).map(|_| (self.of(&NAMES).to_owned(), self.value(depth))).collect()
    }

    /// One of a few keys of the table.
    pub fn key(&mut self, (_, partition, sort): (&str, &str, Option<&str>)) -> Json {
        let mut one_of = |kind: &str| match kind {
            "S" => json!({"S": self.of(&["x", "y"])}),
            "N" => json!({"N": self.of(&["1", "-2", "0.5", "30"])}),
            _ => json!({"B": self.of(&["AA==", "AAE=", "/w=="])}),
        };
        let mut key = json!({"p": one_of(partition)});
        if let Some(sort) = sort {
            key["s"] = one_of(sort);
        }
        key
    }

    /// All keys that [`Requests::key`] gives.
    pub fn keys((_, partition, sort): (&str, &str, Option<&str>)) -> Vec<Json> {
        let all = |kind: &str| match kind {
            "S" => vec![json!({"S": "x"}), json!({"S": "y"})],
            "N" => ["1", "-2", "0.5", "30"].map(|n| json!({"N": n})).to_vec(),
            _ => ["AA==", "AAE=", "/w=="].map(|b| json!({"B": b})).to_vec(),
        };
        let sorts = sort.map_or(vec![Json::Null], all);
        let pairs = all(partition).into_iter().flat_map(|p| {
            sorts.clone().into_iter().map(move |s| match s {
                Json::Null => json!({"p": p}),
                s => json!({"p": p, "s": s}),
            })
        });
        pairs.collect()
    }

    fn path(&mut self, given: &mut Given) -> String {
        let name = self.of(&NAMES);
        let mut path = match self.one_in(4) {
            true => {
                given.names.insert(format!("#{name}"), json!(name));
                format!("#{name}")
            }
            false => name.to_owned(),
        };
        for _ in 0..self.below(6).saturating_sub(3) {
            match self.one_in(2) {
                true => path += &format!("[{}]", self.below(3)),
                false => path += &format!(".{}", self.of(&NAMES)),
            }
        }
        path
    }

    fn operand(&mut self, given: &mut Given) -> String {
        match self.below(8) {
            0 => format!("size({})", self.path(given)),
            1..=3 => self.path(given),
            _ => {
                let value = self.value(1);
                given.value(value)
            }
        }
    }

    fn condition(&mut self, given: &mut Given, depth: usize) -> String {
        if depth > 0 && self.one_in(2) {
            let one = self.condition(given, depth - 1);
            return match self.below(4) {
                0 => format!("NOT ({one})"),
                1 => format!("({one}) OR {}", self.condition(given, depth - 1)),
                2 => format!("{one} or {}", self.condition(given, depth - 1)),
                _ => format!("{one} AND {}", self.condition(given, depth - 1)),
            };
        }
        let path = self.path(given);
        match self.below(10) {
            0 => format!("attribute_exists({path})"),
            1 => format!("attribute_not_exists({path})"),
            2 => {
                let kind = self.of(&["S", "N", "B", "BOOL", "NULL", "SS", "NS", "BS", "L", "M"]);
                format!("attribute_type({path}, {})", given.value(json!({"S": kind})))
            }
            3 => {
                let kind = self.of(&["S", "B"]);
                let with = self.scalar(kind);
                format!("begins_with({path}, {})", given.value(with))
            }
            4 => {
                let kind = self.of(&["S", "N", "B"]);
                let part = self.scalar(kind);
                format!("contains({path}, {})", given.value(part))
            }
            5 => {
                // Values alone: dynalite ends when a path here leads nowhere.
                let mut one = || {
                    let value = self.value(1);
                    given.value(value)
                };
                let list = [one(), one()];
                format!("{path} IN ({})", list.join(", "))
            }
            6 => {
                let (low, high) = (self.scalar("N"), self.scalar("N"));
                format!("{path} BETWEEN {} AND {}", given.value(low), given.value(high))
            }
            _ => {
                let comparison = self.of(&["=", "<>", "<", "<=", ">", ">="]);
                format!("{path} {comparison} {}", self.operand(given))
            }
        }
    }

    fn source(&mut self, given: &mut Given) -> String {
        match self.below(8) {
            0 | 1 => {
                let sign = self.of(&["+", "-"]);
                let more = self.scalar("N");
                format!("{} {sign} {}", self.path(given), given.value(more))
            }
            2 => {
                let list = json!({"L": [self.value(0)]});
                format!("list_append({}, {})", self.path(given), given.value(list))
            }
            3 => {
                let other = self.value(1);
                format!("if_not_exists({}, {})", self.path(given), given.value(other))
            }
            4 => self.path(given),
            _ => {
                let value = self.value(2);
                given.value(value)
            }
        }
    }

    fn update(&mut self, given: &mut Given) -> String {
        let mut sections = Vec::new();
        if !self.one_in(4) {
            let sets: Vec<String> = (0..=self.below(2))
                .map(|_| format!("{} = {}", self.path(given), self.source(given)))
                .collect();
            sections.push(format!("SET {}", sets.join(", ")));
        }
        if self.one_in(3) {
            sections.push(format!("REMOVE {}", self.path(given)));
        }
        if self.one_in(4) {
            let more = match self.one_in(2) {
                true => self.scalar("N"),
                false => json!({"SS": ["b", "c"]}),
            };
            sections.push(format!("ADD {} {}", self.path(given), given.value(more)));
        }
        if self.one_in(5) {
            let less = given.value(json!({"SS": ["a"]}));
            sections.push(format!("DELETE {} {less}", self.path(given)));
        }
        if sections.is_empty() {
            sections.push(format!("REMOVE {}", self.path(given)));
        }
        sections.join(" ")
    }

    /// A table with local indexes, for [`Requests::indexed`].
    pub fn indexed_table() -> Json {
        let attribute =
            |name: &str, kind: &str| json!({"AttributeName": name, "AttributeType": kind});
        let schema = |sort: &str| {
            json!([
                {"AttributeName": "p", "KeyType": "HASH"}, {"AttributeName": sort, "KeyType": "RANGE"}
            ])
        };
        let index = |name: &str, sort: &str, projection: Json| json!({"IndexName": name, "KeySchema": schema(sort), "Projection": projection});
        json!({
            "TableName": "indexed", "BillingMode": "PAY_PER_REQUEST", "KeySchema": schema("s"),
            "AttributeDefinitions": [
                attribute("p", "S"), attribute("s", "N"), attribute("a", "S"), attribute("n1", "N")
            ],
            "LocalSecondaryIndexes": [
                index("all", "a", json!({"ProjectionType": "ALL"})),
                index("keys", "n1", json!({"ProjectionType": "KEYS_ONLY"})),
                index("some", "a", json!({"ProjectionType": "INCLUDE", "NonKeyAttributes": ["b"]}))
            ]
        })
    }

    /// An attribute, mostly one that the indexes of that table take.
    pub fn indexed_value(&mut self, name: &str) -> Json {
        match (name, self.one_in(12)) {
            (_, true) => self.value(1),
            ("n1", _) => self.scalar("N"),
            _ => self.scalar("S"),
        }
    }

    /// One of five writes to a table with indexes; an item lacks each of its attributes once in so many times.
    pub fn indexed_write(
        &mut self,
        mut body: Json,
        key: Json,
        (kind, absent): (usize, usize),
    ) -> (&'static str, Json) {
        match kind {
            0..3 => {
                body["Item"] = key;
                for name in ["a", "n1", "b", "c"] {
                    if self.below(absent) > 0 {
                        body["Item"][name] = self.indexed_value(name);
                    }
                }
                ("PutItem", body)
            }
            3 => {
                body["Key"] = key;
                let name = self.of(&["a", "n1", "b"]);
                body["UpdateExpression"] = match self.one_in(3) {
                    true => json!(format!("REMOVE {name}")),
                    false => {
                        body["ExpressionAttributeValues"] = json!({":v": self.indexed_value(name)});
                        json!(format!("SET {name} = :v"))
                    }
                };
                ("UpdateItem", body)
            }
            _ => {
                body["Key"] = key;
                ("DeleteItem", body)
            }
        }
    }

    /// A request to that table: writes that its indexes take and some that they do not, and looks at indexes.
    pub fn indexed(&mut self) -> (&'static str, Json) {
        let key = self.key(TABLES[1]);
        let mut body = json!({"TableName": "indexed"});
        match self.below(8) {
            kind @ 0..5 => self.indexed_write(body, key, (kind, 3)),
            5 => {
                body["IndexName"] = json!(self.of(&["all", "keys", "some", "none"]));
                ("Scan", body)
            }
            _ => ("Query", self.indexed_query(body)),
        }
    }

    fn indexed_query(&mut self, mut body: Json) -> Json {
        let index = self.of(&["all", "keys", "some"]);
        let (sort, kind) = if index == "keys" { ("n1", "N") } else { ("a", "S") };
        let condition = match self.below(5) {
            0 => "p = :p".to_owned(),
            1 => format!("p = :p AND {sort} BETWEEN :v AND :v"),
            _ => format!("p = :p AND {sort} {} :v", self.of(&["=", "<", "<=", ">", ">="])),
        };
        let mut values = json!({":p": {"S": self.of(&["x", "y"])}});
        if condition.contains(":v") {
            values[":v"] = self.scalar(kind);
        }
        body["IndexName"] = json!(index);
        body["KeyConditionExpression"] = json!(condition);
        body["ExpressionAttributeValues"] = values;
        body["ScanIndexForward"] = json!(self.one_in(2));
        if self.one_in(3) {
            body["Limit"] = json!(1 + self.below(3));
        }
        if self.one_in(4) {
            body["Select"] = json!(self.of(&["COUNT", "ALL_PROJECTED_ATTRIBUTES"]));
        }
        body
    }

    /// What becomes of an item in a transaction, and its parameters.
    fn action(&mut self) -> (&'static str, Json) {
        let table = TABLES[self.below(TABLES.len())];
        let kind = self.of(&["Put", "Update", "Delete", "ConditionCheck"]);
        let mut body = json!({"TableName": table.0});
        let mut given = Given::default();
        let key = self.key(table);
        if kind == "Put" {
            body["Item"] = Json::Object(self.attributes(4, 1));
            key.as_object().into_iter().flatten().for_each(|(name, value)| {
                body["Item"][name] = value.clone();
            });
        } else {
            body["Key"] = key;
        }
        if kind == "Update" {
            body["UpdateExpression"] = json!(self.update(&mut given));
        }
        if kind == "ConditionCheck" || self.one_in(3) {
            body["ConditionExpression"] = json!(self.condition(&mut given, 1));
        }
        if self.one_in(3) {
            body["ReturnValuesOnConditionCheckFailure"] = json!("ALL_OLD");
        }
        given.into(&mut body);
        (kind, body)
    }

    /// The items of a transaction that writes, one of them twice now and then.
    pub fn actions(&mut self) -> Vec<(&'static str, Json)> {
        (0..=self.below(4)).map(|_| self.action()).collect()
    }

    /// A transaction that reads.
    pub fn gets(&mut self) -> Json {
        let count = 1 + self.below(4);
        let get = |_| {
            let table = TABLES[self.below(TABLES.len())];
            let mut body = json!({"TableName": table.0, "Key": self.key(table)});
            let mut given = Given::default();
            if self.one_in(6) {
                body["ProjectionExpression"] = json!(self.projection(&mut given));
            }
            given.into(&mut body);
            json!({"Get": body})
        };
        json!({"TransactItems": (0..count).map(get).collect::<Vec<_>>()})
    }

    fn projection(&mut self, given: &mut Given) -> String {
        let paths: Vec<String> = (0..=self.below(2)).map(|_| self.path(given)).collect();
        paths.join(", ")
    }

    fn write(&mut self, body: &mut Json, given: Given) {
        let mut given = given;
        if self.one_in(3) {
            body["ConditionExpression"] = json!(self.condition(&mut given, 2));
        }
        given.into(body);
    }

    fn put(&mut self, table: (&'static str, &str, Option<&str>)) -> (&'static str, Json) {
        let mut item = self.key(table);
        for (name, value) in self.attributes(6, 2) {
            item[name] = value;
        }
        let mut body = json!({"TableName": table.0, "Item": item});
        if self.one_in(4) {
            body["ReturnValues"] = json!(self.of(&["ALL_OLD", "NONE", "ALL_NEW"]));
        }
        self.write(&mut body, Given::default());
        ("PutItem", body)
    }

    fn query(&mut self, table: (&'static str, &str, Option<&str>)) -> (&'static str, Json) {
        let mut given = Given::default();
        let key = self.key(table);
        let mut text = format!("p = {}", given.value(key["p"].clone()));
        if let Some(kind) = table.2.filter(|_| !self.one_in(3)) {
            let mut value = |requests: &mut Requests| {
                let key = requests.key(table);
                given.value(key["s"].clone())
            };
            text += &match self.below(6) {
                0 => format!(" AND s BETWEEN {} AND {}", value(self), value(self)),
                1 if kind == "B" => format!(" AND begins_with(s, {})", value(self)),
                _ => {
                    let comparison = self.of(&["=", "<", "<=", ">", ">="]);
                    format!(" AND s {comparison} {}", value(self))
                }
            };
        }
        let mut body = json!({"TableName": table.0, "KeyConditionExpression": text});
        if self.one_in(2) {
            body["ScanIndexForward"] = json!(self.one_in(2));
        }
        if self.one_in(4) {
            body["Limit"] = json!(1 + self.below(3));
        }
        if self.one_in(6) {
            body["ExclusiveStartKey"] = key;
        }
        self.filter(&mut body, given);
        ("Query", body)
    }

    fn filter(&mut self, body: &mut Json, mut given: Given) {
        if self.one_in(2) {
            body["FilterExpression"] = json!(self.condition(&mut given, 2));
        }
        match self.below(5) {
            0 => body["ProjectionExpression"] = json!(self.projection(&mut given)),
            1 => body["Select"] = json!(self.of(&["COUNT", "ALL_ATTRIBUTES"])),
            _ => {}
        }
        given.into(body);
    }

    fn batch(&mut self) -> (&'static str, Json) {
        let mut tables = json!({});
        let is_write = self.one_in(2);
        for _ in 0..=self.below(2) {
            let table = TABLES[self.below(3)];
            let count = 1 + self.below(3);
            tables[table.0] = match is_write {
                true => (0..count)
                    .map(|_| match self.one_in(3) {
                        true => json!({"DeleteRequest": {"Key": self.key(table)}}),
                        false => json!({"PutRequest": {"Item": self.put(table).1["Item"]}}),
                    })
                    .collect(),
                false => {
                    let keys: Vec<Json> = (0..count).map(|_| self.key(table)).collect();
                    json!({"Keys": keys, "ConsistentRead": true})
                }
            };
        }
        let operation = if is_write { "BatchWriteItem" } else { "BatchGetItem" };
        (operation, json!({"RequestItems": tables}))
    }

    /// What makes a table, perhaps.
    fn table(&mut self) -> Json {
        let mut names =
            ["p", "s", "p", "t"].into_iter().take(1 + self.below(4)).collect::<Vec<_>>();
        names.dedup();
        let mut part = |name: &str, kinds: &[&str]| -> Vec<Json> {
            let count = names.len().min(1 + self.below(3));
            let one = |at: usize| (names[at], kinds[at.min(kinds.len() - 1)]);
            (0..count)
                .map(|at| {
                    let (attribute, usual) = one(at);
                    let kind = if self.one_in(8) { self.of(kinds) } else { usual };
                    json!({"AttributeName": attribute, name: kind})
                })
                .collect()
        };
        let definitions = part("AttributeType", &["S", "N", "B", "X"]);
        let schema = part("KeyType", &["HASH", "RANGE", "HASH"]);
        let mut body = json!({
            "TableName": self.of(&["four", "five", "one", "x", "wr/ong"]),
            "AttributeDefinitions": definitions, "KeySchema": schema
        });
        match self.below(4) {
            0 => body["BillingMode"] = json!("PAY_PER_REQUEST"),
            1 => {}
            _ => {
                let units = |number: usize| json!(number);
                body["ProvisionedThroughput"] = json!({
                    "ReadCapacityUnits": units(self.below(3)),
                    "WriteCapacityUnits": units(1 + self.below(2))
                });
            }
        }
        body
    }

    /// A request that makes sense.
    pub fn right(&mut self) -> (&'static str, Json) {
        let table = TABLES[self.below(3)];
        match self.below(20) {
            0..=5 => self.put(table),
            6..=10 => {
                let mut given = Given::default();
                let update = self.update(&mut given);
                let mut body = json!({
                    "TableName": table.0, "Key": self.key(table), "UpdateExpression": update
                });
                if self.one_in(2) {
                    let words = ["ALL_OLD", "UPDATED_OLD", "ALL_NEW", "UPDATED_NEW", "NONE"];
                    body["ReturnValues"] = json!(self.of(&words));
                }
                self.write(&mut body, given);
                ("UpdateItem", body)
            }
            11 => {
                let mut body = json!({"TableName": table.0, "Key": self.key(table)});
                if self.one_in(2) {
                    body["ReturnValues"] = json!("ALL_OLD");
                }
                self.write(&mut body, Given::default());
                ("DeleteItem", body)
            }
            12 | 13 => {
                let mut given = Given::default();
                let mut body = json!({
                    "TableName": table.0, "Key": self.key(table), "ConsistentRead": true
                });
                if self.one_in(2) {
                    body["ProjectionExpression"] = json!(self.projection(&mut given));
                }
                given.into(&mut body);
                ("GetItem", body)
            }
            14..=16 => self.query(table),
            17 => {
                let mut body = json!({"TableName": table.0, "ConsistentRead": true});
                self.filter(&mut body, Given::default());
                ("Scan", body)
            }
            18 => self.batch(),
            _ if self.one_in(2) => ("CreateTable", self.table()),
            _ => ("DescribeTable", json!({"TableName": self.of(&["one", "two", "none"])})),
        }
    }

    /// A request with which something is wrong, as a rule.
    pub fn wrong(&mut self) -> (&'static str, Json) {
        let (operation, mut body) = self.right();
        let names: Vec<String> = body.as_object().unwrap().keys().cloned().collect();
        let at = &names[self.below(names.len())];
        match self.below(6) {
            0 => drop(body.as_object_mut().unwrap().remove(at)),
            1 => {
                let instead = [json!(1), json!("x"), json!([]), json!({}), json!(true), json!("")];
                body[at] = instead[self.below(instead.len())].clone();
            }
            2 => {
                let kind = self.of(&["ExpressionAttributeNames", "ExpressionAttributeValues"]);
                match kind.ends_with("Names") {
                    true => body[kind]["#unused"] = json!("a"),
                    false => body[kind][":unused"] = json!({"S": "a"}),
                }
            }
            3 => {
                let part = if body.get("Item").is_some() { "Item" } else { "Key" };
                if body.get(part).is_some() {
                    let values = [
                        json!({"S": ""}),
                        json!({"N": "x"}),
                        json!({"N": "1e200"}),
                        json!({}),
                        json!({"SS": []}),
                        json!({"S": "a", "N": "1"}),
                        json!({"NS": ["1", "1"]}),
                        json!({"NULL": false}),
                        json!({"BOOL": true}),
                        json!({"B": "a"}),
                        json!({"N": "1"}),
                        json!({"S": "x"}),
                    ];
                    let name = self.of(&["p", "s", "a"]);
                    body[part][name] = values[self.below(values.len())].clone();
                }
            }
            _ => {
                let texts: Vec<&String> =
                    names.iter().filter(|name| name.ends_with("Expression")).collect();
                if !texts.is_empty() {
                    let at = texts[self.below(texts.len())];
                    let text = body[at].as_str().unwrap_or_default().to_owned();
                    body[at] = json!(self.mangled(&text));
                }
            }
        }
        (operation, body)
    }

    fn mangled(&mut self, text: &str) -> String {
        let mut parts: Vec<&str> = text.split(' ').collect();
        let at = self.below(parts.len());
        match self.below(4) {
            0 => drop(parts.remove(at)),
            1 => parts.insert(at, self.of(&["(", ")", ",", "AND", "=", "size", ":no", "#no", "-"])),
            2 => parts[at] = self.of(&["name", "SET", "NOT", "a", "1", "[0]", "<>", "foo(a)", "p"]),
            _ => {
                let other = self.below(parts.len());
                parts.swap(at, other);
            }
        }
        parts.join(" ")
    }
}
