"""Small templates, one or a few constructs each, and the context they are rendered with."""

CONTEXT = {
    "name": "World",
    "empty": "",
    "number": 7,
    "negative": -3,
    "big": 123456789012345678901234567890,
    "float": 2.5,
    "large": 1e20,
    "tiny": 1e-7,
    "whole": 3.0,
    "yes": True,
    "no": False,
    "nothing": None,
    "words": ["b", "A", "c", "B", "a"],
    "numbers": [3, 1, 2, 3],
    "nested": [[1, 2], [3], []],
    "mapping": {"b": 1, "a": {"x": [1, {"y": None}]}, "C": "three"},
    "users": [
        {"name": "Ann", "age": 31, "city": "Rome"},
        {"name": "bob", "age": 25, "city": "oslo"},
        {"name": "Cid", "age": 31, "city": "Oslo", "tags": ["x", "y"]},
    ],
    "text": "  The quick\tbrown fox\nJumps — über ßtraße 中文 😀 'quoted' \"double\" <b>&amp;  ",
    "lines": "one\n\ntwo\r\nthree\n",
    "items_key": {"items": 1, "keys": 2, "get": 3},
}

SNIPPETS = r"""
Hello {{ name }}!
{{ name ~ 1 ~ none ~ true ~ 2.0 }}
{{ missing }}|{{ missing is defined }}|{{ missing or 'x' }}
{{ missing.attribute }}
{{ missing[0] }}
{{ missing + 1 }}
{{ mapping.missing }}|{{ mapping['missing'] }}
{{ mapping.a.x[1].y }}
{{ mapping.missing.deeper }}
{{ 1 + 2 * 3 }} {{ (1 + 2) * 3 }} {{ 7 // 2 }} {{ -7 // 2 }} {{ 7 % 3 }} {{ -7 % 3 }} {{ 7 / 2 }} {{ 2 ** 10 }}
{{ 2 ** 3 ** 2 }} {{ -2 ** 2 }} {{ 2 ** -1 }} {{ 7.5 // 2 }} {{ -7.5 % 2 }} {{ 6 / 3 }}
{{ 1 / 0 }}
{{ 1 % 0 }}
{{ 1.0 // 0 }}
{{ true + 1 }} {{ true * 3 }} {{ -true }} {{ +true }} {{ not true }} {{ not 0 }}
{{ 'a' + 'b' }} {{ 'ab' * 3 }} {{ 3 * 'ab' }} {{ [1] + [2] }} {{ [0] * 3 }} {{ (1, 2) + (3,) }}
{{ 'a' + 1 }}
{{ 1 < 2 < 3 }} {{ 1 < 3 < 2 }} {{ 1 == 1.0 }} {{ true == 1 }} {{ 'a' < 'b' }} {{ [1, 2] < [1, 3] }}
{{ 'a' < 1 }}
{{ none < 1 }}
{{ 1 in numbers }} {{ 9 not in numbers }} {{ 'or' in name }} {{ 'a' in mapping }} {{ 'x' in missing }}
{{ 1 in 'abc' }}
{{ 1 in 5 }}
{{ 'yes' if yes else 'no' }} {{ 'x' if no }} {{ 'a' if no else 'b' if no else 'c' }}
{{ (yes and 5) or 6 }} {{ no and missing.x }} {{ yes or missing.x }}
{{ [1, 'two', 3.0, none, true, [4], {'k': 'v'}, (5,)] }} {{ () }} {{ (1, 2) }} {{ [] }} {{ {} }}
{{ {'a': 1, 'b': [2]}['b'][0] }} {{ {1: 'one', 'x': 2}[1] }} {{ {'a': 1, 'a': 2} }}
{{ big }} {{ big ~ 'x' }} {{ big == 123456789012345678901234567890 }} {{ [big] }} {{ big|tojson }}
{{ float }} {{ large }} {{ tiny }} {{ whole }} {{ 1e16 }} {{ 1e15 }} {{ 123456.789 }} {{ 0.1 }} {{ 1e-4 }} {{ 1.5e300 }}
{{ 1_000 }} {{ 0x1F }} {{ 0b101 }} {{ 0o17 }} {{ 1e3 }} {{ 1.5E-2 }}
{{ 'a' 'b' "c" }} {{ 'it\'s' }} {{ "tab\there" }} {{ 'uni\u00e9\x41\101' }} {{ 'back\\slash \q' }}
{{ name[0] }} {{ name[-1] }} {{ name[1:3] }} {{ name[::-1] }} {{ name[:-1] }} {{ name[10] }}|{{ name[10:] }}|{{ name[4:1:-1] }}
{{ numbers[0] }} {{ numbers[-1] }} {{ numbers[1:] }} {{ numbers[::2] }} {{ numbers[::-1] }} {{ numbers[9] }}| {{ numbers[-9:2] }}
{{ numbers[::0] }}
{{ missing[1:] }}
{{ mapping[1:] }}
{{ numbers.0 }} {{ nested.0.1 }} {{ text[2:5] }} {{ text[-12:-8] }}
{{ mapping.b }} {{ mapping['b'] }} {{ mapping.get('b') }} {{ mapping.get('z') }} {{ mapping.get('z', 9) }}
{{ items_key.items is callable }}
{{ items_key['items'] }} {{ items_key['get'] }} {{ mapping['get']('b') }}
{{ mapping.keys() }} {{ mapping.values() }} {{ mapping.items() }} {{ mapping.keys()|list }}
{% for k, v in mapping.items() %}{{ loop.index }}:{{ k }}={{ v }};{% endfor %}
{% for k in mapping %}{{ k }},{% endfor %}
{% for c in name %}{{ c }}-{% endfor %}
{% for x in numbers %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.depth }}{{ loop.depth0 }} {% endfor %}
{% for x in numbers %}{{ loop.previtem }}<{{ x }}>{{ loop.nextitem }} {{ loop.previtem is defined }}{{ loop.cycle('odd', 'even') }} {{ loop.changed(x) }};{% endfor %}
{% for x in [] %}never{% else %}empty{% endfor %} {% for x in missing %}never{% else %}undefined{% endfor %}
{% for x in 5 %}{% endfor %}
{% for x in none %}{% endfor %}
{% for x in numbers if x > 1 %}{{ loop.index }}/{{ loop.length }}:{{ x }} {% endfor %}
{% for x in numbers if x > 9 %}{{ x }}{% else %}none{% endfor %}
{% for a, b in [(1, 2), (3, 4)] %}{{ a + b }} {% endfor %} {% for a, (b, c) in [(1, (2, 3))] %}{{ a }}{{ b }}{{ c }}{% endfor %}
{% for a, b in [(1, 2, 3)] %}{% endfor %}
{% for x in numbers %}{% if x == 1 %}{% continue %}{% endif %}{{ x }}{% if loop.index == 3 %}{% break %}{% endif %}{% endfor %}
{% for x in range(3) %}{% for y in range(x) %}{{ loop.depth }}{{ x }}{{ y }} {% endfor %}{% endfor %}
{% for item in [{'n': 1, 'c': [{'n': 2, 'c': []}]}] recursive %}[{{ loop.depth }}:{{ item.n }}{% if item.c %}{{ loop(item.c) }}{% endif %}]{% endfor %}
{{ range(5)|list }} {{ range(2, 8, 3)|list }} {{ range(5, 0, -2)|list }} {{ range(3) }} {{ range(1, 4)[1] }}
{{ range(1000000) }}
{{ range(1, 2, 0) }}
{% set x = 5 %}{{ x }}{% set x = x + 1 %}{{ x }} {% set a, b = 1, 2 %}{{ a }}{{ b }}
{% set x = 1 %}{% for i in range(3) %}{% set x = x + 10 %}{{ x }} {% endfor %}{{ x }}
{% set x = 1 %}{% if yes %}{% set x = 2 %}{% endif %}{{ x }}
{% set ns = namespace(n=0, s='') %}{% for i in range(4) %}{% set ns.n = ns.n + i %}{% set ns.s = ns.s ~ i %}{% endfor %}{{ ns.n }} {{ ns.s }} {{ ns.none }}
{% set ns = namespace({'a': 1}, b=2) %}{{ ns.a }}{{ ns.b }} {{ ns.c is defined }}
{% set mapping.x = 1 %}
{% set block %}a{{ name }}b{% endset %}[{{ block }}] {% set up | upper | trim %} x{{ name }} {% endset %}[{{ up }}]
{% filter upper %}loud {{ name }}{% endfilter %} {% filter replace('l', 'L') | trim %} hello {% endfilter %}
{% with a = 1, b = a %}{{ a }}{{ b }}{% endwith %}{{ a }}
{% macro m(a, b=2, c=b) %}{{ a }}/{{ b }}/{{ c }}{% endmacro %}{{ m(1) }} {{ m(1, 3) }} {{ m(a=4, c=5) }} {{ m() }}
{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, 2) }}
{% macro m(a) %}{{ a }}{% endmacro %}{{ m(z=2) }}
{% macro m() %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1, 2, x=3) }}
{% macro fact(n) %}{% if n <= 1 %}1{% else %}{{ n * fact(n - 1)|int }}{% endif %}{% endmacro %}{{ fact(10) }}
{% macro outer() %}<{{ caller('x') }}>{% endmacro %}{% call(v) outer() %}[{{ v }}{{ name }}]{% endcall %}
{% macro outer() %}<{{ caller is defined }}>{% endmacro %}{{ outer() }}
{% macro show(v) %}{% if v is mapping %}{{ '{' }}{% for k, w in v.items() %}{{ k }}:{{ show(w) }},{% endfor %}{{ '}' }}{% elif v is string %}'{{ v }}'{% elif v is iterable %}[{% for w in v %}{{ show(w) }};{% endfor %}]{% else %}{{ v }}{% endif %}{% endmacro %}{{ show(mapping) }}
{% macro late() %}{{ later }}{% endmacro %}{% set later = 'now' %}{{ late() }}
{% macro scoped() %}{{ loop is defined }}{{ x is defined }}{% endmacro %}{% for x in [1] %}{{ scoped() }}{% endfor %}
{{ name|upper }} {{ name|lower }} {{ 'heLLo wORLD-foo'|title }} {{ 'hELLO'|capitalize }} {{ text|upper }} {{ text|title }} {{ text|lower }}
[{{ text|trim }}] [{{ 'xxhixx'|trim('x') }}] {{ name|length }} {{ text|length }} {{ mapping|length }} {{ missing|length }} {{ numbers|count }}
{{ 5|length }}
{{ words|join }} {{ words|join(', ') }} {{ numbers|join('-') }} {{ users|join(',', attribute='name') }} {{ missing|join('x') }} {{ name|join('.') }}
{{ missing|default('d') }} {{ none|default('d') }} {{ ''|default('d', true) }} {{ ''|d('e', boolean=true) }} {{ missing|default }}|
{{ 'hello'|replace('l', 'L') }} {{ 'hello'|replace('l', 'L', 1) }} {{ 'hello'|replace('', '-') }} {{ 123|replace('2', 'x') }}
{{ numbers|first }} {{ numbers|last }} {{ ''|first }}| {{ []|last }}| {{ name|first }}{{ name|last }} {{ mapping|first }}
{{ 'abc'|list }} {{ mapping|list }} {{ numbers|reverse|list }} {{ 'abc'|reverse }} {{ (1, 2)|list }}
{{ users|map(attribute='name')|list }} {{ words|map('upper')|join }} {{ users|map(attribute='tags', default='-')|list }} {{ users|map(attribute='tags.0')|list }}
{{ users|selectattr('age', 'equalto', 31)|map(attribute='name')|join(',') }} {{ users|rejectattr('tags')|list|length }} {{ users|selectattr('tags', 'defined')|list }}
{{ numbers|select('odd')|list }} {{ numbers|reject('>', 1)|list }} {{ [0, 1, '', 'a', none]|select|list }} {{ numbers|select('in', [1, 2])|list }} {{ numbers|select('divisibleby', 3)|list }}
{% if numbers|select('gt', 100) %}generators are true{% endif %} {% set g = numbers|select('odd') %}{{ g|list }}{{ g|list }}
{{ (numbers|select('odd'))|length }}
{{ numbers|map('string')|list }} {{ ['1', '2']|map('int')|sum }} {{ words|map('replace', 'a', 'z')|list }}
{{ mapping|items|list }} {{ missing|items|list }} {{ mapping|dictsort }} {{ mapping|dictsort(true) }} {{ {'x': 2, 'y': 1}|dictsort(by='value') }} {{ {'x': 2, 'y': 1}|dictsort(reverse=true) }}
{{ 5|items|list }}
{{ words|sort }} {{ words|sort(case_sensitive=true) }} {{ numbers|sort(reverse=true) }} {{ users|sort(attribute='city')|map(attribute='name')|list }} {{ users|sort(attribute='age,name')|map(attribute='name')|list }}
{{ [1, 'a']|sort }}
{{ words|unique|list }} {{ words|unique(true)|list }} {{ users|unique(attribute='age')|map(attribute='name')|list }}
{{ numbers|min }} {{ numbers|max }} {{ words|min }} {{ words|max(case_sensitive=true) }} {{ []|min }}| {{ users|max(attribute='age') }}
{{ numbers|sum }} {{ users|sum(attribute='age') }} {{ [1.5, 2]|sum(start=10) }}
{{ users|groupby('age') }} {% for city, list in users|groupby('city') %}{{ city }}:{{ list|length }} {% endfor %}
{{ [1, 2, 3, 4, 5]|batch(2)|list }} {{ [1, 2, 3]|batch(2, '-')|list }} {{ [1, 2, 3, 4, 5]|slice(3)|list }} {{ [1, 2, 3, 4]|slice(3, 'x')|list }}
{{ '42'|int }} {{ '42.9'|int }} {{ 'x'|int }} {{ 'x'|int(5) }} {{ 3.99|int }} {{ none|int }} {{ true|int }} {{ '0x1f'|int(base=16) }} {{ ' 12 '|int }} {{ '1_000'|int }} {{ -3.7|int }} {{ '12345678901234567890123'|int }}
{{ '1.5'|float }} {{ 'x'|float }} {{ 3|float }} {{ '1e3'|float }} {{ 'inf'|float }} {{ ''|float(2.5) }}
{{ -5|abs }} {{ -2.5|abs }} {{ 42.55|round }} {{ 42.55|round(1) }} {{ 2.5|round }} {{ 3.5|round }} {{ 42.1|round(0, 'ceil') }} {{ 42.9|round(method='floor') }} {{ 7|round }} {{ 2.675|round(2) }} {{ 1234.5|round(-2) }}
{{ 'x'|abs }}
{{ '<b>&"\''|escape }} {{ '<b>'|e }} {{ '<b>'|safe }} {{ 5|string }} {{ [1]|string }} {{ 'one two  three'|wordcount }}
{{ lines|indent }} {{ lines|indent(2, true) }} {{ lines|indent('> ', blank=true) }} {{ 'a\nb'|indent(width=3) }}
{{ '%s is %d and %.2f'|format('x', 5, 2.345) }} {{ '%(a)s-%(b)03d'|format(a='q', b=7) }} {{ '%5s|%-5s|%05d|%x|%%|%r' % ('a', 'b', 42, 255, 'q') }} {{ '%s' % name }} {{ '%s %s' % (1, [2]) }}
{{ '%d' % 'x' }}
{{ '%s' % (1, 2) }}
{{ '{} {}'.format(1, 'b') }} {{ '{0}{1}{0}'.format('a', 'b') }} {{ '{x:>5}|{x:<5}|{x:^5}'.format(x='ab') }} {{ '{:.2f} {:,} {:05d} {:x} {:e} {:%}'.format(3.14159, 1234567, 42, 255, 12345.678, 0.25) }} {{ '{{}} {!r}'.format('q') }}
{{ mapping|tojson }} {{ text|tojson }} {{ users|tojson(indent=2) }} {{ 'é中😀\x7f'|tojson(ensure_ascii=true) }} {{ 'é\n\t"\\/'|tojson }} {{ [1, 2.0, none, true, 'x']|tojson }}
{{ mapping|tojson(separators=(',', ':')) }} {{ mapping|tojson(sort_keys=true) }} {{ mapping|tojson(indent=4, separators=(', ', ' : ')) }} {{ {1: 2, none: 3, true: 4, 2.5: 5}|tojson }} {{ []|tojson(indent=2) }} {{ (1, 2)|tojson }} {{ mapping|tojson(indent='--') }}
{{ missing|tojson }}
{{ mapping.items()|tojson }}
{{ '  x '.strip() }}| {{ 'xxaxx'.strip('x') }} {{ 'xxa'.lstrip('x') }} {{ 'axx'.rstrip('x') }} {{ 'a,b,,c'.split(',') }} {{ ' a  b '.split() }} {{ 'a b c'.split(' ', 1) }} {{ 'a b c'.rsplit(' ', 1) }} {{ '  a  b  c '.split(none, 1) }} {{ '  a  b  c '.rsplit(none, 1) }}
{{ 'hello'.startswith('he') }} {{ 'hello'.endswith(('x', 'lo')) }} {{ 'hello'.find('l') }} {{ 'hello'.rfind('l') }} {{ 'hello'.find('z') }} {{ 'hello'.count('l') }} {{ 'hello'.index('e') }} {{ 'hello'.startswith('l', 2) }} {{ 'hello'.find('l', 3, 4) }} {{ 'hello'.count('') }}
{{ 'hello'.index('z') }}
{{ 'hello'.replace('l', 'LL', 1) }} {{ 'Ab'.upper() }} {{ 'Ab'.lower() }} {{ 'hello world'.title() }} {{ "they're bill's".title() }} {{ 'hello'.capitalize() }} {{ 'aBc'.swapcase() }} {{ ','.join(['a', 'b']) }} {{ 'a-b-c'.partition('-') }} {{ 'a-b-c'.rpartition('-') }} {{ 'abc'.partition('-') }}
{{ ','.join([1, 2]) }}
{{ 'a\nb\r\nc'.splitlines() }} {{ 'ab'.zfill(5) }} {{ '-5'.zfill(4) }} {{ 'ab'.ljust(5) }}| {{ 'ab'.rjust(5, '*') }} {{ 'ab'.center(5, '-') }} {{ 'abc'.center(6, '-') }} {{ 'prefix-x'.removeprefix('prefix-') }} {{ 'x.py'.removesuffix('.py') }}
{{ '12'.isdigit() }} {{ 'ab'.isalpha() }} {{ 'a1'.isalnum() }} {{ ' '.isspace() }} {{ 'ab'.islower() }} {{ 'AB'.isupper() }} {{ ''.isdigit() }} {{ '½'.isnumeric() }} {{ 'é'.isascii() }} {{ '²'.isdigit() }} {{ '²'.isdecimal() }}
{{ text.split()[1] }} {{ text.upper() }} {{ text.find('中') }} {{ 'ǆ'.title() }} {{ 'ß'.upper() }} {{ 'ŉx'.capitalize() }} {{ 'ΑΣ'.lower() }}
{{ numbers.count(3) }} {{ numbers.index(2) }} {{ numbers.copy() }} {{ mapping.copy() }}
{{ numbers.append(4) }}
{{ mapping.update({'z': 1}) }}
{{ numbers.append }}|{{ name.__class__ }}|{{ name.nothing }}
{{ name is string }} {{ 5 is number }} {{ true is number }} {{ true is integer }} {{ 5 is integer }} {{ 5.0 is float }} {{ true is boolean }} {{ none is none }} {{ [] is iterable }} {{ 'a' is iterable }} {{ 5 is iterable }} {{ mapping is mapping }} {{ [] is sequence }} {{ mapping is sequence }} {{ mapping.keys() is sequence }} {{ missing is iterable }} {{ big is integer }}
{{ 4 is even }} {{ 3 is odd }} {{ 9 is divisibleby 3 }} {{ 9 is divisibleby(2) }} {{ 'a' is lower }} {{ 'A' is upper }} {{ 5 is eq 5 }} {{ 5 is gt(3) }} {{ 5 is in numbers }} {{ 3 is in(numbers) }} {{ true is true }} {{ 1 is true }} {{ false is false }} {{ none is sameas none }} {{ range is callable }} {{ name is callable }} {{ 'upper' is filter }} {{ 'odd' is test }} {{ 5 is ne 4 }} {{ 5 is lt 6 and 6 is ge 6 }}
{{ 5 is not string }} {{ not 5 is string }} {{ missing is undefined }} {{ missing is not defined }} {{ name is defined and name is string or no }} {{ 1 if name is string else 2 }}
{{ dict(a=1, b=2) }} {{ dict([('x', 1)]) }} {{ dict({'k': 'v'}, z=1) }}
{% set j = joiner('|') %}{% for x in numbers %}{{ j() }}{{ x }}{% endfor %} {% set c = cycler('a', 'b') %}{{ c.next() }}{{ c.next() }}{{ c.next() }}
{{ raise_exception('stop here') }}
{{ strftime_now('%Y-%m-%d %H:%M') }} {{ strftime_now('%d %b %Y') }}
{% generation %}said {{ name }}{% endgeneration %}
{% raw %}{{ not rendered }} {% nor this %}{% endraw %} {%- raw -%}  x  {%- endraw -%} y
{# comment #}a{#- trimmed -#} b {# multi
line #}
c
{{- name -}} x
a  {{- ' b ' -}}  c
{%- if yes -%}  tight  {%- endif -%}  end
  {%+ if yes %}kept{% endif %}
{% if yes %}
first
  {% if no %}
  hidden
  {% else %}
    shown
  {% endif %}
last
{% endif +%}

after
{{ '{{' }} {{ "}}" }} {{ {'a': {'b': 1}} }} {{ '%}' }}
{{ users[0].name }} {{ users[-1]['tags'][1] }} {{ users|length > 2 }} {{ (users|first).age }} {{ users[0]|tojson }}
{{ 'a' if true }}{{ ('x', 'y')[1] }}{{ [1, 2, 3][-1] }}{{ {'a': 'b'}.a }}{{ 'abc'[1] }}{{ 'abc'.upper()[0] }}
{{ 'a' ~ 'b' * 2 }} {{ 1 ~ 2 + 3 }} {{ 'x' ~ 1 + 2 }}
{{ name | upper | lower | replace('w', 'W') }} {{ -5 | abs }} {{ 'a' ~ 'B' | lower }} {{ (1, 2) | sum }}
{% if not (name is defined and name != 'World') and number > 5 %}ok{% elif no %}x{% else %}y{% endif %}
{% for m in users %}{% if loop.first and m.name == 'Ann' %}A{% elif loop.last %}Z{% else %}{{ m.name }}{% endif %}{% if not loop.last %}, {% endif %}{% endfor %}
{% do numbers.append(1) %}
{{ unclosed
{% if yes %}no end
{% endif %}
{{ 1 + }}
{{ 'unterminated }}
{% unknown %}
{{ name|nofilter }}
{{ name is notest }}
{{ 1 2 }}
{% set true = 1 %}
{% break %}
{{ [1, 2 }}
{{ foo(**{'a': 1}) }}
{% macro m(a, b) %}{{ a }}{{ b }}{% endmacro %}{{ m(*[1, 2]) }} {{ m(**{'a': 3, 'b': 4}) }}
{{ 'é' < 'z' }} {{ 'a' == 'a' }} {{ none == false }} {{ missing == missing }} {{ [1] == (1,) }} {{ {'a': 1} == {'a': 1.0} }}
{{ -name }}
{{ name() }}
{{ 5.upper() }}
{{ loop }}
{% for x in numbers %}{{ loop }}{% endfor %}
{{ [x for x in numbers] }}
{{ lambda: 1 }}
{{ 3000000000 * 3000000000 }} {{ -9223372036854775807 - 1 }}
{{ 'x' * 3 ~ 'y' }}{{ [] or 'empty' }}{{ '' or none or 0 or 'last' }}{{ 0 and 1 }}
{{ name ~ '\n' ~ name }}
{% set x %}{% for i in range(3) %}{{ i }}{% endfor %}{% endset %}{{ x|length }}{{ x }}
{% for i in range(2) %}
  {% for j in range(2) %}
    {{ i }}{{ j }}
  {% endfor %}
{% endfor %}
"""


def snippets():
    """Each line is a template; a few go on over the next lines because a block stays open."""
    out = []
    pending = ""
    for line in SNIPPETS.strip("\n").split("\n"):
        out.append(line)
        pending += line + "\n"
        opens = pending.count("{% if") + pending.count("{% for") + pending.count("{#")
        closes = pending.count("{% endif") + pending.count("{% endfor") + pending.count("#}")
        if opens <= closes:
            out.append(pending.rstrip("\n") + "\n")
            out.append(pending)
            pending = ""
    return list(dict.fromkeys(out))
