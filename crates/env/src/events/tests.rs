use super::*;

#[test]
fn an_event_has_its_name_its_fields_and_its_sentence_in_both_forms() {
    let (_, told) = told_by(|| {
        let path = "a b";
        event!(ViewStopped, format_args!("entry {} \u{1b}[2J", 7), topic = "blobs/0", node = 3u32);
        event!(Finding, "a sentence", path);
    });
    assert_eq!(told.len(), 2);
    assert!(told[0].is_error() && !told[1].is_error());
    let line = "error view.stopped topic=blobs/0 node=3: entry 7 ";
    assert!(told[0].to_string().starts_with(line), "{}", told[0]);
    assert!(!told[0].to_string().contains('\u{1b}'), "a terminal obeys nothing of it");
    assert_eq!(told[1].to_string(), "warn node.finding path=\"a b\": a sentence");
    let object: Value = serde_json::from_str(&told[0].object("t")).unwrap();
    assert_eq!((&object["event"], &object["node"]), (&"view.stopped".into(), &3.into()));
    assert_eq!(object["message"], "entry 7 \u{1b}[2J");
}

#[test]
fn what_libraries_tell_is_not_ours() {
    let (_, told) = told_by(|| tracing::error!("of a library"));
    assert_eq!(told, []);
}

#[test]
fn names_are_unlike_each_other_and_on_the_page_for_operators() {
    let mut names: Vec<_> = Event::ALL.iter().map(|event| event.name()).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), Event::ALL.len());
    let page = include_str!("../../../../docs/operations.md");
    assert!(page.contains(&table()), "docs/operations.md wants this table of events:\n{}", table());
}

#[test]
fn levels_and_forms_are_words() {
    assert_eq!("json".parse(), Ok(Form::Json));
    assert!("xml".parse::<Form>().is_err() && "loud".parse::<LeastLevel>().is_err());
    assert_eq!("warn".parse(), Ok(LeastLevel(Level::WARN)));
}

#[test]
fn what_every_request_meets_is_told_once() {
    let (_, told) = told_by(|| {
        (0..3).for_each(|request| event!(RequestBug, "the same", request));
        event!(RequestBug, "another");
        event!(NodeStarted, "the same");
        event!(NodeStarted, "the same");
    });
    let mut sentences = BTreeSet::new();
    let news: Vec<bool> = told.iter().map(|told| is_news(&mut sentences, told)).collect();
    assert_eq!(news, [true, false, false, true, true, true]);
}
