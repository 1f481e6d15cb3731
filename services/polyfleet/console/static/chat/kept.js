// Chats, kept in this browser: trees of messages, since each may be edited or answered again.
//
// A chat is {id, title, system, nodes: {id: {id, parent, role, text, thoughts, model, facts}}, last: {parent: child}}.
// `last` says which child of a message is shown; the root's name is "".
"use strict";
const Kept = (() => {
  const NAME = "polyfleet.chats";
  const MOST = 100;

  function all() {
    try {
      return JSON.parse(localStorage.getItem(NAME)) || [];
    } catch {
      return [];
    }
  }

  function save(chat) {
    let chats = [chat, ...all().filter((each) => each.id !== chat.id)].slice(0, MOST);
    while (chats.length) {
      try {
        localStorage.setItem(NAME, JSON.stringify(chats));
        return;
      } catch {
        chats = chats.slice(0, -1); // the browser's room is used up: the oldest makes way
      }
    }
  }

  function remove(id) {
    localStorage.setItem(NAME, JSON.stringify(all().filter((each) => each.id !== id)));
  }

  function fresh() {
    return { id: crypto.randomUUID(), title: "", system: "", nodes: {}, last: {} };
  }

  function add(chat, parent, role, text, model) {
    const node = { id: crypto.randomUUID(), parent, role, text, thoughts: "", model, facts: "" };
    chat.nodes[node.id] = node;
    chat.last[parent] = node.id;
    if (!chat.title && role === "user") chat.title = text.slice(0, 60);
    return node;
  }

  function siblings(chat, node) {
    return Object.values(chat.nodes).filter((each) => each.parent === node.parent && each.role === node.role);
  }

  // The messages that are shown, first to last.
  function path(chat) {
    const found = [];
    for (let id = chat.last[""]; id && chat.nodes[id]; id = chat.last[id]) found.push(chat.nodes[id]);
    return found;
  }

  // What a model is told to answer to: all above and with `node`.
  function above(chat, node) {
    const found = [];
    for (let each = node; each; each = chat.nodes[each.parent]) found.unshift({ role: each.role, content: each.text });
    return chat.system ? [{ role: "system", content: chat.system }, ...found] : found;
  }

  return { all, save, remove, fresh, add, siblings, path, above };
})();
