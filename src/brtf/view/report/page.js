"use strict";
(() => {
  const frames = JSON.parse(document.getElementById("frames").textContent);
  const panels = [...document.querySelectorAll("#viewer figure")].map((figure) => ({
    picture: figure.querySelector("img"),
    name: figure.querySelector("figcaption").textContent,
  }));
  const slider = document.getElementById("slider");
  const shown = document.getElementById("frame");
  const play = document.getElementById("play");
  let timer = null;

  const show = () => {
    const frame = Number(slider.value);
    panels.forEach(({ picture, name }, k) => {
      picture.src = frames.pictures[frame][k];
      picture.alt = `${name}, ${frames.names[frame]}`;
    });
    shown.textContent = frames.names[frame];
    slider.setAttribute("aria-valuetext", frames.names[frame]);
  };
  const stop = () => {
    clearInterval(timer);
    timer = null;
    play.textContent = "▶";
    play.setAttribute("aria-label", "Play");
  };
  const start = () => {
    timer = setInterval(() => {
      slider.value = (Number(slider.value) + 1) % frames.pictures.length;
      show();
    }, 150);
    play.textContent = "❚❚";
    play.setAttribute("aria-label", "Pause");
  };

  slider.addEventListener("input", () => {
    stop();
    show();
  });
  play.addEventListener("click", () => (timer === null ? start() : stop()));
  show(); // a reloaded page may keep the slider where it was
})();
