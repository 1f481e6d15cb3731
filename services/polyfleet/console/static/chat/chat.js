// The chat's page: one pane, or two that answer the same side by side.
"use strict";
(() => {
  const at = (id) => document.getElementById(id);
  const page = at("chat");
  const texts = JSON.parse(page.dataset.texts);
  const root = document.querySelector("meta[name=root]").content;
  const csrf = document.querySelector("meta[name=csrf]").content;
  const SETTINGS = ["temperature", "top_p", "max_tokens", "seed"];
  let chat = Kept.fresh();
  let stopping = new AbortController();
  let answering = 0;

  const put = (text, values) => text.replace(/\{(\w+)\}/g, (_, name) => values[name]);
  const models = () => [at("model").value, at("second").value].filter(Boolean);

  function settings() {
    const found = {};
    for (const name of SETTINGS) if (at(name).value !== "") found[name] = Number(at(name).value);
    return found;
  }

  // Shows the chat: questions, and below each its answers of each model, the last one of each.
  function show() {
    const panes = at("panes");
    panes.replaceChildren();
    for (const node of Kept.path(chat)) {
      if (node.role === "assistant") continue;
      panes.append(shownQuestion(node));
      const row = document.createElement("div");
      row.className = "answers";
      for (const answer of lastAnswers(node)) row.append(shownAnswer(answer).element);
      panes.append(row);
    }
    document.title = document.title.replace(/^.*?·/, `${chat.title || texts.new} ·`);
    list();
  }

  // Of the answers to a question the shown one, and beside it the last of another model.
  function lastAnswers(question) {
    const all = Object.values(chat.nodes).filter((each) => each.parent === question.id && each.role === "assistant");
    const byModel = new Map(all.map((each) => [each.model, each]));
    const chosen = chat.nodes[chat.last[question.id]];
    if (chosen) byModel.set(chosen.model, chosen);
    return [...byModel.values()].slice(-2);
  }

  function branchOf(node, family) {
    return {
      at: family.indexOf(node),
      of: family.length,
      move: (by) => {
        const other = family[family.indexOf(node) + by];
        if (!other || answering) return;
        chat.last[node.parent] = other.id;
        Kept.save(chat);
        show();
      },
    };
  }

  function shownQuestion(node) {
    const edit = () => {
      if (answering) return;
      at("text").value = node.text;
      at("text").dataset.parent = node.parent;
      at("text").focus();
    };
    return Shown.message(node, texts.you, texts, [[texts.edit, edit]], branchOf(node, Kept.siblings(chat, node))).element;
  }

  function shownAnswer(node) {
    const family = Kept.siblings(chat, node).filter((each) => each.model === node.model);
    const acts = [
      [texts.again, () => answering || answer(chat.nodes[node.parent], [node.model])],
      [texts.copy, () => navigator.clipboard.writeText(node.text)],
    ];
    return Shown.message(node, node.model, texts, acts, branchOf(node, family));
  }

  function list() {
    at("chats").replaceChildren(
      ...Kept.all().map((each) => {
        const item = document.createElement("li");
        const open = document.createElement("a");
        open.href = `#${each.id}`;
        open.textContent = each.title || texts.new;
        if (each.id === chat.id) open.setAttribute("aria-current", "true");
        const remove = Shown.button("×", () => {
          if (!window.confirm(texts.delete)) return;
          Kept.remove(each.id);
          if (each.id === chat.id) location.hash = "";
          list();
        });
        remove.setAttribute("aria-label", texts.delete);
        item.append(open, remove);
        return item;
      }),
    );
  }

  async function answer(question, names) {
    stopping = new AbortController();
    busy(names.length);
    const nodes = names.map((name) => Kept.add(chat, question.id, "assistant", "", name));
    show();
    const elements = [...at("panes").lastElementChild.children].slice(-nodes.length);
    await Promise.all(nodes.map((node, n) => stream(question, node, elements[n])));
    Kept.save(chat);
    show();
    busy(0);
  }

  function busy(count) {
    answering = count;
    at("stop").hidden = !count;
    at("send").hidden = Boolean(count);
  }

  async function stream(question, node, element) {
    const find = (name) => element.querySelector(name);
    const parts = { element, thoughts: find("details"), thought: find("details > div"), body: find(".body"), facts: find(".facts-line") };
    let waiting = false;
    const later = () => {
      if (waiting) return;
      waiting = true;
      requestAnimationFrame(() => {
        waiting = false;
        Shown.fill(parts, node);
        element.scrollIntoView({ block: "nearest" });
      });
    };
    try {
      for await (const told of events(question, node)) {
        note(node, told);
        later();
      }
    } catch (error) {
      node.facts = error.name === "AbortError" ? texts.stopped : texts.lost;
    }
    later();
  }

  function note(node, told) {
    if (told.reasoning) node.thoughts += told.reasoning;
    if (told.text) node.text += told.text;
    if (told.worker) {
      if (node.worker && node.worker !== told.worker) node.facts = put(texts.moved, { worker: told.worker });
      node.worker = told.worker;
    }
    if (told.problem) node.facts = told.problem;
    if (told.done) {
      const { completion_tokens: tokens, seconds, first_seconds: first } = told.done;
      const rate = tokens && seconds > first ? ((tokens - 1) / (seconds - first)).toFixed(1) : "–";
      const speed = put(texts.speed, { rate, first: first === null ? "–" : Math.round(first * 1000) });
      node.facts = [speed, node.worker, node.facts].filter(Boolean).join(" · ");
    }
  }

  async function* events(question, node) {
    const answer = await fetch(`${root}/chat/answer`, {
      method: "POST",
      headers: { "content-type": "application/json", "x-csrf-token": csrf },
      body: JSON.stringify({ model: node.model, messages: Kept.above(chat, question), ...settings() }),
      signal: stopping.signal,
    });
    if (!(answer.headers.get("content-type") || "").startsWith("text/event-stream")) {
      yield answer.headers.get("content-type") === "application/json" ? await answer.json() : { problem: `${answer.status}` };
      return;
    }
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const blocks = (rest + value).split("\n\n");
      rest = blocks.pop();
      for (const block of blocks) if (block.startsWith("data: ")) yield JSON.parse(block.slice(6));
    }
  }

  function say() {
    const text = at("text").value.trim();
    if (!text || answering || !models().length) return;
    const shown = Kept.path(chat);
    const edited = at("text").dataset.parent;
    const parent = edited !== undefined ? edited : shown.length ? shown[shown.length - 1].id : "";
    at("text").value = "";
    delete at("text").dataset.parent;
    chat.system = at("system").value;
    const question = Kept.add(chat, parent, "user", text, "");
    Kept.save(chat);
    location.replace(`#${chat.id}`);
    answer(question, models());
  }

  function code(kind) {
    const body = { model: at("model").value, messages: [], ...settings() };
    const shown = Kept.path(chat);
    const question = shown.filter((each) => each.role === "user").pop();
    body.messages = question ? Kept.above(chat, question) : [{ role: "user", content: "Hello!" }];
    const json = JSON.stringify(body);
    const host = page.dataset.gateway.split(":")[0];
    if (kind === "curl") return `curl -N http://${host}:8000/v1/chat/completions -H "Authorization: Bearer $KEY" \\\n  -H 'Content-Type: application/json' -d '${JSON.stringify({ ...body, stream: true }).replaceAll("'", "'\\''")}'`;
    if (kind === "python") return `from polyfleet.client import Client\n\nwith Client("${page.dataset.gateway}", api_key=KEY) as client:\n    for delta in client.stream(**${pythonOf(body)}):\n        print(delta.text, end="", flush=True)`;
    return `grpcurl -plaintext -H "authorization: Bearer $KEY" -d '${json.replaceAll("'", "'\\''")}' \\\n  ${page.dataset.gateway} polyfleet.v1.Inference/Generate`;
  }

  // JSON of what a chat holds is Python too: it has no true, false or null.
  function pythonOf(body) {
    return JSON.stringify(body, null, 2).replaceAll("\n", "\n    ");
  }

  async function begin() {
    try {
      const told = await (await fetch(`${root}/chat/models`)).json();
      const names = told.models || [];
      if (!names.length) at("panes").textContent = told.problem || texts.none;
      for (const select of ["model", "second"]) at(select).append(...names.map((name) => new Option(name, name)));
    } catch {
      at("panes").textContent = texts.lost;
    }
    open();
  }

  function open() {
    if (answering) return;
    chat = Kept.all().find((each) => `#${each.id}` === location.hash) || Kept.fresh();
    at("system").value = chat.system;
    if (Kept.path(chat).length) show();
    else {
      at("panes").replaceChildren();
      list();
    }
  }

  at("say").addEventListener("submit", (event) => {
    event.preventDefault();
    say();
  });
  at("text").addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      say();
    }
  });
  at("stop").addEventListener("click", () => stopping.abort());
  at("new").addEventListener("click", () => {
    location.hash = "";
    at("text").focus();
  });
  document.querySelectorAll("[data-copy]").forEach((button) =>
    button.addEventListener("click", () => {
      at("code").textContent = code(button.dataset.copy);
      navigator.clipboard?.writeText(at("code").textContent);
    }),
  );
  addEventListener("hashchange", open);
  begin();
})();
