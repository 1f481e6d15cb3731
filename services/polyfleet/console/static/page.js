// Every page: choices that submit themselves, and one question before what can't be undone.
"use strict";
document.addEventListener("change", (event) => {
  const form = event.target.closest("form[data-submits]");
  if (form) form.requestSubmit();
});
document.addEventListener("submit", (event) => {
  const question = event.target.dataset.confirm;
  if (question && !window.confirm(question)) event.preventDefault();
});
